"""Estimate of a transformer's training as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from jellybean.display.formats import decimal_size, plain
from jellybean_solver.pipeline import (
    RECOMPUTATIONS,
    DeviceMemory,
    TrainingSetup,
    Transformer,
    device_memory,
    devices_for_states,
    iteration_flops,
    largest_parameters,
    model_state_memory,
    smallest_setup,
)

_USES = {  # rows of the table of memory -> field of DeviceMemory
    "weights": "weights_bytes",
    "gradients": "gradients_bytes",
    "optimizer states": "optimizer_bytes",
    "activations": "activations_bytes",
    "total": "total_bytes",
}


@dataclass(frozen=True)
class DeviceFit:
    """How a transformer fits devices with `memory_bytes`: `smallest` is the setup with the fewest; None: none fits."""

    device: str
    memory_bytes: float
    largest_parameters: float
    devices_for_states: int
    smallest: TrainingSetup | None


@dataclass(frozen=True)
class TrainingEstimate:
    """A transformer, the setup that trains it, and the devices it may be trained on (name -> bytes of memory).

    Its methods raise SolverError if the setup cannot divide the transformer.
    """

    transformer: Transformer
    setup: TrainingSetup
    devices: dict[str, float]

    def whole_model(self) -> DeviceMemory:
        """Memory of all weights, gradients and optimizer states once: not partitioned, no replicas, no activations."""
        return model_state_memory(self.transformer.parameters, replace(self.setup, zero=0))

    def first_stage(self) -> DeviceMemory:
        """Memory of a device of the first pipeline stage, the fullest."""
        return device_memory(self.transformer, self.setup)

    def recomputations(self) -> Iterator[tuple[str, DeviceMemory, float]]:
        """For each recomputation its name, the memory of a device, and FLOPs per iteration."""
        for name in RECOMPUTATIONS:
            memory = device_memory(self.transformer, replace(self.setup, recompute=name))
            yield name, memory, iteration_flops(self.transformer, self.setup.samples, name)

    def fits(self) -> Iterator[DeviceFit]:
        """For each kind of device, what fits it and how many are needed."""
        for name, memory_bytes in self.devices.items():
            yield DeviceFit(
                name,
                memory_bytes,
                largest_parameters(memory_bytes, self.setup),
                devices_for_states(self.transformer, memory_bytes, self.setup),
                smallest_setup(self.transformer, memory_bytes, self.setup),
            )

    def to_json(self) -> dict[str, Any]:
        """The estimate as JSON values; docs/pipelines.md lists the keys."""
        transformer, setup, first = self.transformer, self.setup, self.first_stage()
        return {
            "transformer": asdict(transformer),
            "parameters": transformer.parameters,
            "embedding_parameters": transformer.embedding_parameters,
            "bytes_per_parameter": setup.bytes_per_parameter,
            "setup": {**_setup_json(setup), "microbatches": setup.microbatches, "samples": setup.samples},
            "model": _memory_json(self.whole_model()),
            "device": _memory_json(first),
            "recomputation": [
                {"recompute": name, **_memory_json(memory), "flops_per_iteration": flops}
                for name, memory, flops in self.recomputations()
            ],
            "devices": [
                {
                    "device": fit.device,
                    "memory_bytes": fit.memory_bytes,
                    "largest_parameters": fit.largest_parameters,
                    "fits": first.total_bytes <= fit.memory_bytes,
                    "devices_for_states": fit.devices_for_states,
                    "smallest": None if fit.smallest is None else _setup_json(fit.smallest),
                }
                for fit in self.fits()
            ],
        }

    def tables(self) -> Iterable[Table]:
        """Memory by use, recomputation beside its memory and FLOPs, and devices."""
        return self._memory_table(), self._recomputation_table(), self._device_table()

    def notes(self) -> Iterable[str]:
        """What the figures include, and whose formulas they are."""
        yield (
            "a device is one of the first pipeline stage (1F1B), the fullest; devices by states: without activations; "
            "largest model: on one device alone, without activations and ZeRO"
        )
        yield (
            "activations: Korthikanti et al. 2022; FLOPs: Narayanan et al. 2021, whose figure has full recomputation; "
            "not included: position embeddings, buffers of messages, fragmentation"
        )

    def _memory_table(self) -> Table:
        transformer, setup = self.transformer, self.setup
        whole, first = self.whole_model(), self.first_stage()
        table = Table("memory", "whole model", f"a device of {_shape(setup)}", title_justify="left")
        embedding = parameter_count(transformer.embedding_parameters)
        table.title = (
            f"{parameter_count(transformer.parameters)} parameters ({embedding} in the embedding), "
            f"{plain(setup.bytes_per_parameter)} bytes each with gradients and optimizer states"
        )
        for use, field in _USES.items():
            model_bytes = "" if use == "activations" else decimal_size(getattr(whole, field))
            table.add_row(use, model_bytes, decimal_size(getattr(first, field)), end_section=use == "activations")
        return table

    def _recomputation_table(self) -> Table:
        table = Table("recomputation", "activations", "a device in all", "FLOPs per iteration", title_justify="left")
        setup = self.setup
        table.title = (
            f"per iteration: {setup.samples:,} x {self.transformer.seq:,} tokens; per replica {setup.microbatches:,} x "
            f"{setup.micro_batch:,} samples"
        )
        for name, memory, flops in self.recomputations():
            chosen = " (chosen)" if name == setup.recompute else ""
            sizes = (decimal_size(memory.activations_bytes), decimal_size(memory.total_bytes))
            table.add_row(f"{name}{chosen}", *sizes, f"{flops:.3g}")
        return table

    def _device_table(self) -> Table:
        columns = ("this setup fits", "devices by states", "with activations", "largest model")
        table = Table("device", "memory", *columns, title_justify="left")
        total_bytes = self.first_stage().total_bytes
        table.title = f"fewest devices, tensor x pipeline x replicas, recomputation: {self.setup.recompute}"
        for fit in self.fits():
            smallest = "none fits" if fit.smallest is None else f"{fit.smallest.devices:,} = {_shape(fit.smallest)}"
            share = total_bytes / fit.memory_bytes
            table.add_row(
                fit.device,
                decimal_size(fit.memory_bytes),
                f"{share:.0%} full" if share <= 1 else "no",
                f"{fit.devices_for_states:,}",
                smallest,
                parameter_count(fit.largest_parameters),
            )
        return table


def parameter_count(parameters: float) -> str:
    """A number of parameters in billions, small ones in millions or as they are: 0.35 B, 12 M, 52."""
    if parameters >= 1e8:
        return f"{plain(parameters / 1e9)} B"
    return f"{plain(parameters / 1e6)} M" if parameters >= 1e6 else f"{parameters:,.0f}"


def _shape(setup: TrainingSetup) -> str:
    return f"{setup.tensor} x {setup.pipeline} x {setup.replicas}"


def _setup_json(setup: TrainingSetup) -> dict[str, Any]:
    names = ("tensor", "pipeline", "replicas", "zero", "devices", "micro_batch", "recompute")
    return {name: getattr(setup, name) for name in names}


def _memory_json(memory: DeviceMemory) -> dict[str, float]:
    return {field: getattr(memory, field) for field in _USES.values()}
