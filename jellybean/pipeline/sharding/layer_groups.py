"""Layers of a stage that are split in the same way, and the parts of them that each device has."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from jellybean.display import formats
from jellybean_solver.pipeline import LayerGraph, Partition, PartitionStage

NAMES = {"sample": "samples", "out": "columns", "in": "rows"}  # of a batch, and of a weight matrix (in x out)


@dataclass(frozen=True)
class LayerGroup:
    """Consecutive layers of a stage with one split: per axis of the submesh, a dimension or None (repeated)."""

    names: tuple[str, ...]
    split: tuple[str | None, ...]
    axes: tuple[int, ...]

    @property
    def title(self) -> str:
        """The first layer's name, and the number of the others."""
        return self.names[0] + (f" and {len(self.names) - 1} more" if len(self.names) > 1 else "")

    @property
    def words(self) -> str:
        """The split in words, such as `samples over 2, columns over 4`."""
        over = [
            f"{NAMES.get(name, name) if name else 'repeated'} over {count}"
            for name, count in zip(self.split, self.axes, strict=True)
            if count > 1
        ]
        return ", ".join(over) or "whole"

    def parts(self, dimension: str) -> int:
        """Into how many parts a dimension is split."""
        return math.prod(count for name, count in zip(self.split, self.axes, strict=True) if name == dimension)

    def part_of(self, device: int, dimension: str) -> int:
        """The part of a dimension that a device of the submesh has; devices count from 0, the last axis fastest."""
        part = 0
        for name, count, place in zip(self.split, self.axes, self._coordinates(device), strict=True):
            if name == dimension:
                part = part * count + place
        return part

    def _coordinates(self, device: int) -> tuple[int, ...]:
        places = []
        for count in reversed(self.axes):
            device, place = divmod(device, count)
            places.append(place)
        return tuple(reversed(places))


def layer_groups(graph: LayerGraph, stage: PartitionStage) -> tuple[LayerGroup, ...]:
    """The groups of a stage, in order; empty if the stage has no sharding."""
    if stage.sharding is None or stage.submesh is None:
        return ()
    hosts, devices = stage.submesh
    axes = (hosts, devices) if hosts > 1 else (devices,)
    pairs = zip(stage.layers, (strategy.split for strategy in stage.sharding.strategies), strict=True)
    return tuple(
        LayerGroup(tuple(graph.layers[layer].name for layer, _ in group), split, axes)
        for split, group in itertools.groupby(pairs, key=lambda pair: pair[1])
    )


def sharding_json(graph: LayerGraph, stage: PartitionStage) -> dict[str, Any]:
    """How a stage's layers are split, and its seconds by kind; empty without sharding."""
    if stage.sharding is None:
        return {}
    names = [graph.layers[layer].name for layer in stage.layers]
    return {
        "compute_s": stage.sharding.compute_s,
        "all_reduce_s": stage.sharding.all_reduce_s,
        "resharding_s": stage.sharding.resharding_s,
        "split": [
            {"layer": name, "axes": list(strategy.split)}
            for name, strategy in zip(names, stage.sharding.strategies, strict=True)
        ],
    }


def sharding_lines(graph: LayerGraph, partition: Partition) -> tuple[str, ...]:
    """Per stage its submesh and seconds by kind, and a line per group of layers; last, what either pass costs alone."""
    lines: list[str] = []
    for number, stage in enumerate(partition.stages):
        if stage.sharding is None or stage.submesh is None:
            return ()
        sharding, (hosts, devices) = stage.sharding, stage.submesh
        lines.append(
            f"stage {number}: {hosts} x {devices} devices; computation {formats.duration(sharding.compute_s)}, "
            f"all-reduces {formats.duration(sharding.all_reduce_s)}, "
            f"changes of layout {formats.duration(sharding.resharding_s)}"
        )
        lines += [f"  {group.title}: {group.words}" for group in layer_groups(graph, stage)]
    alone = [
        f"{name} parallelism alone {formats.duration(seconds)}"
        if math.isfinite(seconds)
        else f"{name} parallelism alone: no plan"
        for name, seconds in partition.alternatives.items()
    ]
    return (*lines, "; ".join(alone))
