"""A model as the partitioner sees it: layers with their costs, and edges that carry activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from jellybean_solver.errors import SolverError

MOST_CUTS = 4000  # beyond, only the cuts of one topological order are looked at
MOST_NARROWED = 40_000  # likewise, where few of them are looked at in pairs


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


def cuts(graph: LayerGraph, most: int = MOST_CUTS, *, free_idle: bool = False) -> tuple[tuple[int, ...], bool]:
    """The graph's down-sets as bits, from none to all, each after what it holds; and whether these are all that matter.

    A pipeline's stages are the differences of a chain of down-sets. With `free_idle` a layer without time and
    parameters may stand anywhere (as long as memory does not count): down-sets that send less with such a layer taken
    in, or with it left out, are left out for those. Where there are more than `most`, only those that are prefixes of
    the topological order are given.
    """
    idle = _Idle(graph) if free_idle else None
    everything = (1 << len(graph.layers)) - 1
    sources = sum(1 << index for index, needed in enumerate(graph.upstream) if not needed)
    first = (0, sources) if idle is None else idle.grown(0, sources)
    found = {0: sources, first[0]: first[1]}
    left = [first[0]]
    while left:
        cut = left.pop()
        ready = found[cut]
        while ready:
            index = (ready & -ready).bit_length() - 1
            ready &= ready - 1
            more = cut | 1 << index
            if more in found:
                continue
            after = _ready(graph, found[cut] & ~(1 << index), index, more)
            grown, after = (more, after) if idle is None else idle.grown(more, after)
            if grown not in found:
                found[grown] = after
                left.append(grown)
        if len(found) > most:
            return tuple((1 << size) - 1 for size in range(len(graph.layers) + 1)), False
    kept = found if idle is None else {cut for cut in found if cut in (0, everything) or not idle.hinders(cut)}
    return tuple(sorted(kept, key=lambda cut: (cut.bit_count(), cut))), True


def _ready(graph: LayerGraph, others: int, index: int, cut: int) -> int:
    """Layers that may come next, once `index` was the last to come into the cut."""
    opened = graph.downstream[index]
    while opened:
        following = (opened & -opened).bit_length() - 1
        opened &= opened - 1
        if not graph.upstream[following] & ~cut:
            others |= 1 << following
    return others


class _Idle:
    """Layers without time and parameters: what taking one in saves never shrinks as a cut grows, so what holds for a
    cut holds for those that follow it, and a chain of cuts stays one."""

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.layers = sum(
            1 << index for index, layer in enumerate(graph.layers) if not layer.both_s and not layer.parameter_bytes
        )
        self.sent = [
            layer.activation_bytes if down else 0.0 for layer, down in zip(graph.layers, graph.downstream, strict=True)
        ]

    def grown(self, cut: int, ready: int) -> tuple[int, int]:
        """The cut with every idle layer that it may take in without sending more."""
        waiting = ready & self.layers
        while waiting:
            index = (waiting & -waiting).bit_length() - 1
            waiting &= waiting - 1
            if self.sent[index] <= self._last_use(index, cut):
                cut |= 1 << index
                ready = _ready(self.graph, ready & ~(1 << index), index, cut)
                waiting = ready & self.layers
        return cut, ready

    def _last_use(self, index: int, cut: int) -> float:
        """Bytes that the cut sends for this layer alone."""
        graph = self.graph
        return sum(self.sent[up] for up in _places(graph.upstream[index]) if graph.downstream[up] & ~cut == 1 << index)

    def hinders(self, cut: int) -> bool:
        """Whether the cut sends less without one of its idle layers."""
        graph = self.graph
        for index in _places(cut & self.layers):
            if not graph.downstream[index] & cut:
                without = cut & ~(1 << index)
                if self._last_use(index, without) < self.sent[index]:
                    return True
        return False


def _places(bits: int) -> list[int]:
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found
