"""Strategies of an operator on a mesh, each with its costs; and the cost of a tensor between two of them.

Along each axis of the mesh an operator is split by one dimension, or repeated. Where it is split by a dimension that a
tensor lacks, each device has a part of the sum that the tensor is: an output without the dimension is summed by an
all-reduce in the forward pass, the gradient of an input or weight without it in the backward pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from jellybean_solver.pipeline.sharding.mesh import Mesh
from jellybean_solver.pipeline.sharding.operators import DimensionedTensor, Operator

Layout = tuple[int | None, ...]  # per axis of the mesh: the position of the tensor's dimension that it splits


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """Bytes that a device needs. `states`: bytes of weights, gradients and optimizer states per byte of weights.

    `in_flight`: micro-batches of whose outputs it holds its part.
    """

    limit_bytes: float
    states: float = 4.0
    in_flight: float = 1.0


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an operator. `split`: per axis of the mesh, a dimension; None: repeated on all its devices.

    `compute_s`, `activations_s`: seconds per micro-batch of computation, and of all-reduces of outputs and of inputs'
    gradients. `weights_s`: of all-reduces of weights' gradients, per update.
    """

    split: tuple[str | None, ...]
    compute_s: float
    activations_s: float
    weights_s: float
    weight_bytes: float
    output_bytes: float
    inputs: tuple[Layout, ...]
    output: Layout

    def seconds(self, microbatches: int) -> float:
        """Seconds per micro-batch, of `microbatches` per update."""
        return self.compute_s + self.activations_s + self.weights_s / microbatches

    def memory_bytes(self, rule: MemoryRule) -> float:
        """Bytes of a device."""
        return rule.states * self.weight_bytes + rule.in_flight * self.output_bytes


def strategies(operator: Operator, mesh: Mesh) -> tuple[Strategy, ...]:
    """All strategies of an operator. Each axis splits one dimension; both axes may split the same one."""
    return tuple(_strategy(operator, mesh, split) for split in _splits(operator, mesh))


def _splits(operator: Operator, mesh: Mesh) -> Iterator[tuple[str | None, ...]]:
    names = (None, *(name for name in operator.dimensions if name not in operator.whole))
    for split in itertools.product(*(names if axis.devices > 1 else (None,) for axis in mesh)):
        parts = dict.fromkeys((name for name in split if name is not None), 1)
        for name, axis in zip(split, mesh, strict=True):
            if name is not None:
                parts[name] *= axis.devices
        if all(operator.sizes.get(name, count) % count == 0 for name, count in parts.items()):
            yield split


def _strategy(operator: Operator, mesh: Mesh, split: tuple[str | None, ...]) -> Strategy:
    devices = math.prod(axis.devices for axis, name in zip(mesh, split, strict=True) if name is not None)

    def summed_s(tensor: DimensionedTensor) -> float:
        part_bytes = local_bytes(tensor.size_bytes, layout_of(tensor, split), mesh)
        axes = [axis for axis, name in zip(mesh, split, strict=True) if name and name not in tensor.dimensions]
        return sum(axis.all_reduce_s(part_bytes) for axis in axes)

    return Strategy(
        split,
        operator.compute_s / devices,
        summed_s(operator.output) + sum(summed_s(tensor) for tensor in operator.inputs if tensor.gradient),
        sum(summed_s(tensor) for tensor in operator.weights if tensor.gradient),
        sum(local_bytes(tensor.size_bytes, layout_of(tensor, split), mesh) for tensor in operator.weights),
        local_bytes(operator.output.size_bytes, layout_of(operator.output, split), mesh),
        tuple(layout_of(tensor, split) for tensor in operator.inputs),
        layout_of(operator.output, split),
    )


def layout_of(tensor: DimensionedTensor, split: tuple[str | None, ...]) -> Layout:
    """How a tensor lies on the mesh if its operator is split so."""
    return tuple(tensor.dimensions.index(name) if name in tensor.dimensions else None for name in split)


def local_bytes(size_bytes: float, layout: Layout, mesh: Mesh) -> float:
    """Bytes of a device's part of a tensor."""
    return size_bytes / math.prod(axis.devices for axis, place in zip(mesh, layout, strict=True) if place is not None)


def resharding_s(size_bytes: float, source: Layout, target: Layout, mesh: Mesh) -> float:
    """Seconds to change a tensor's layout.

    An axis that only the target splits takes its part, which sends nothing; then parts are exchanged (all-to-all), then
    gathered. So the collectives come when the parts are smallest.
    """
    now, seconds = [after if before is None else before for before, after in zip(source, target, strict=True)], 0.0
    for index, after in enumerate(target):
        if after is not None and now[index] != after:
            seconds += mesh[index].all_to_all_s(local_bytes(size_bytes, tuple(now), mesh))
            now[index] = after
    for index, after in enumerate(target):
        if after is None and now[index] is not None:
            now[index] = None
            seconds += mesh[index].all_gather_s(local_bytes(size_bytes, tuple(now), mesh))
    return seconds
