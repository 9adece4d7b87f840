"""A model as the partitioner sees it: layers with their costs, and edges that carry activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from jellybean_solver.errors import SolverError

MOST_CUTS = 4000  # beyond, only the cuts of one topological order are looked at


@dataclass(frozen=True, slots=True)
class Layer:
    """Of one micro-batch: seconds forward and backward, bytes that its output has, bytes of its parameters."""

    name: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float = 0.0

    @property
    def both_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class LayerGraph:
    """`layers` in topological order; `edges`: (upstream, downstream) by place in it."""

    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def upstream(self) -> tuple[int, ...]:
        """Layer -> bits of the layers that it needs directly."""
        found = [0] * len(self.layers)
        for up, down in self.edges:
            found[down] |= 1 << up
        return tuple(found)

    @cached_property
    def downstream(self) -> tuple[int, ...]:
        found = [0] * len(self.layers)
        for up, down in self.edges:
            found[up] |= 1 << down
        return tuple(found)

    def crossing_bytes(self, cut: int) -> float:
        """What the layers in `cut` (bits) send to the others: each output once, whoever reads it."""
        return sum(
            layer.activation_bytes
            for index, layer in enumerate(self.layers)
            if cut >> index & 1 and self.downstream[index] & ~cut
        )


def layer_graph(layers: Sequence[tuple[str, Layer]], edges: Sequence[tuple[str, str]]) -> LayerGraph:
    """A graph of named layers, put into topological order. SolverError for a cycle or an unknown name."""
    by_name = dict(layers)
    needs: dict[str, list[str]] = {name: [] for name in by_name}
    for up, down in edges:
        if up not in by_name or down not in by_name:
            raise SolverError(f"the edge {up} -> {down} has an end that is no layer")
        needs[down].append(up)
    try:
        order = tuple(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise SolverError(f"the layers form a cycle: {' -> '.join(error.args[1])}") from error
    place = {name: index for index, name in enumerate(order)}
    pairs = sorted({(place[up], place[down]) for up, down in edges})
    return LayerGraph(tuple(by_name[name] for name in order), tuple(pairs))


def cuts(graph: LayerGraph, most: int = MOST_CUTS) -> tuple[tuple[int, ...], bool]:
    """The graph's down-sets as bits, from none to all, each after what it holds; and whether these are all.

    A pipeline's stages are the differences of a chain of down-sets. Where there are more than `most`, only those that
    are prefixes of the topological order are given.
    """
    everything = (1 << len(graph.layers)) - 1
    level, found = {0}, [0]
    while level:
        grown = {
            cut | 1 << index
            for cut in level
            for index, needed in enumerate(graph.upstream)
            if not cut >> index & 1 and not needed & ~cut
        }
        found += sorted(grown)
        if len(found) > most:
            return tuple((1 << size) - 1 for size in range(len(graph.layers) + 1)), False
        level = grown - {everything}
    return tuple(found), True
