"""Hybrid parallelism of a published network: bytes by layer as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.table import Table

from jellybean.display.formats import decimal_size
from jellybean_solver.pipeline import PUBLISHED_NETWORKS, LayerKind, LayerStrategy, NetworkLayer, sent_bytes


@dataclass(frozen=True)
class HybridTraffic:
    """A published network whose layers follow `strategies` by their kind, on `workers` with `batch` samples each."""

    network: str
    strategies: dict[LayerKind, LayerStrategy]
    workers: int
    batch: int

    @property
    def layers(self) -> tuple[NetworkLayer, ...]:
        return PUBLISHED_NETWORKS[self.network]

    @cached_property
    def data_bytes(self) -> tuple[float, ...]:
        """Bytes that each worker sends per step for each layer if all layers are data parallel."""
        return self._sent_bytes(dict.fromkeys(LayerKind, LayerStrategy.DATA))

    @cached_property
    def tensor_bytes(self) -> tuple[float, ...]:
        """The same if all layers are tensor parallel."""
        return self._sent_bytes(dict.fromkeys(LayerKind, LayerStrategy.TENSOR))

    @cached_property
    def hybrid_bytes(self) -> tuple[float, ...]:
        """The same by `strategies`."""
        return self._sent_bytes(self.strategies)

    def _sent_bytes(self, strategies: Mapping[LayerKind, LayerStrategy]) -> tuple[float, ...]:
        return sent_bytes(self.layers, strategies, self.workers, self.batch)

    def title(self) -> str:
        """The totals as a sentence."""
        hybrid, data = sum(self.hybrid_bytes), sum(self.data_bytes)
        times = f", {data / hybrid:.3g} times as much" if hybrid else ""
        return (
            f"{self.network}, {self.workers:,} workers with {self.batch:,} samples each: {decimal_size(hybrid)} per "
            f"worker and step; all data-parallel {decimal_size(data)}{times}"
        )

    def to_json(self) -> dict[str, Any]:
        """The bytes as JSON values; docs/pipelines.md lists the keys."""
        figures = zip(self.layers, self.data_bytes, self.tensor_bytes, self.hybrid_bytes, strict=True)
        return {
            "network": self.network,
            "workers": self.workers,
            "batch": self.batch,
            "strategies": {kind.value: strategy.value for kind, strategy in self.strategies.items()},
            "parameters": sum(layer.parameters for layer in self.layers),
            "data_bytes": sum(self.data_bytes),
            "tensor_bytes": sum(self.tensor_bytes),
            "hybrid_bytes": sum(self.hybrid_bytes),
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind.value,
                    "strategy": self.strategies[layer.kind].value,
                    "parameters": layer.parameters,
                    "inputs": layer.inputs,
                    "outputs": layer.outputs,
                    "data_bytes": data,
                    "tensor_bytes": tensor,
                    "hybrid_bytes": hybrid,
                }
                for layer, data, tensor, hybrid in figures
            ],
        }

    def table(self) -> Table:
        """Table with one row per layer and one of the sums."""
        columns = ("parameters", "all data", "all tensor", "hybrid", "strategy")
        table = Table("layer", *columns, title=self.title(), title_justify="left")
        for index, layer in enumerate(self.layers):
            sizes = (one[index] for one in (self.data_bytes, self.tensor_bytes, self.hybrid_bytes))
            last = index == len(self.layers) - 1
            strategy = self.strategies[layer.kind].value
            table.add_row(layer.name, f"{layer.parameters:,}", *map(decimal_size, sizes), strategy, end_section=last)
        sums = (decimal_size(sum(one)) for one in (self.data_bytes, self.tensor_bytes, self.hybrid_bytes))
        table.add_row("sum", f"{sum(layer.parameters for layer in self.layers):,}", *sums, "")
        return table

    def notes(self) -> Iterable[str]:
        """How bytes are counted."""
        yield (
            "sent by each worker per step, float32: data parallel a ring all-reduce of the gradients, tensor parallel "
            "the same share of all workers' activations, forward and backward"
        )
