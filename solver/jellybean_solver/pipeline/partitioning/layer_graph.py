"""A model as a graph of layers with costs, and its cuts: sets of layers closed under predecessors (down-sets)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from jellybean_solver.errors import SolverError
from jellybean_solver.time_limit import work_limit


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's costs for one micro-batch: forward and backward seconds, bytes of the output, bytes of parameters."""

    name: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float = 0.0

    @property
    def compute_s(self) -> float:
        """Forward plus backward seconds."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class LayerGraph:
    """`layers` in topological order; `edges`: (upstream, downstream) indices. In bit sets, bit i is layer i."""

    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def upstream(self) -> tuple[int, ...]:
        """Per layer, the bit set of its direct predecessors."""
        return self._bit_sets((down, up) for up, down in self.edges)

    @cached_property
    def downstream(self) -> tuple[int, ...]:
        """Per layer, the bit set of its direct successors."""
        return self._bit_sets(self.edges)

    def _bit_sets(self, pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Per layer, the bit set of the others in its (layer, other) pairs."""
        bits = [0] * len(self.layers)
        for layer, other in pairs:
            bits[layer] |= 1 << other
        return tuple(bits)

    def crossing_bytes(self, cut: int) -> float:
        """Bytes that layers in `cut` (a bit set) send to layers outside; an output read several times counts once."""
        return sum(
            layer.activation_bytes
            for index, layer in enumerate(self.layers)
            if cut >> index & 1 and self.downstream[index] & ~cut
        )

    def boundary_bytes(self, stages: Sequence[Sequence[int]]) -> list[float]:
        """Bytes of activations between each stage, given by its layers, and the next."""
        done, crossing = 0, []
        for layers in stages[:-1]:
            done |= sum(1 << layer for layer in layers)
            crossing.append(self.crossing_bytes(done))
        return crossing


def layer_graph(layers: Sequence[tuple[str, Layer]], edges: Sequence[tuple[str, str]]) -> LayerGraph:
    """The graph of named layers, sorted topologically. SolverError for a cycle or an edge with an unknown name."""
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


def enumerate_cuts(graph: LayerGraph, max_cuts: int, *, free_idle: bool = False) -> tuple[tuple[int, ...], bool]:
    """The graph's down-sets as bit sets, from the empty to the full one, and False if there were too many.

    The stages of a pipeline are the differences of nested down-sets. Subsets come before their supersets. If there are
    more than `max_cuts`, only the prefixes of the topological order are returned. With `free_idle`, layers without time
    and parameters are moved to the side of each cut where fewer bytes cross it; without a memory limit, the remaining
    down-sets still contain an optimal partition. The time limit of the work counts as too many.
    """
    idle = _IdleLayers(graph) if free_idle else None
    everything = (1 << len(graph.layers)) - 1
    sources = sum(1 << index for index, needed in enumerate(graph.upstream) if not needed)
    first = (0, sources) if idle is None else idle.extend(0, sources)
    ready_of = {0: sources, first[0]: first[1]}  # down-set -> layers that may be added to it
    pending = [first[0]]
    while pending:
        cut = pending.pop()
        ready = ready_of[cut]
        while ready:
            index = (ready & -ready).bit_length() - 1
            ready &= ready - 1
            larger = cut | 1 << index
            if larger in ready_of:
                continue
            after = _ready(graph, ready_of[cut] & ~(1 << index), index, larger)
            larger, after = (larger, after) if idle is None else idle.extend(larger, after)
            if larger not in ready_of:
                ready_of[larger] = after
                pending.append(larger)
        if len(ready_of) > max_cuts or work_limit().left() == 0.0:
            return tuple((1 << size) - 1 for size in range(len(graph.layers) + 1)), False
    kept = ready_of if idle is None else {c for c in ready_of if c in (0, everything) or not idle.is_wasteful(c)}
    return tuple(sorted(kept, key=lambda cut: (cut.bit_count(), cut))), True


def _ready(graph: LayerGraph, others: int, index: int, cut: int) -> int:
    """Bit set of the layers that may be added to `cut` next: `others`, and those that adding layer `index` enabled."""
    opened = graph.downstream[index]
    while opened:
        following = (opened & -opened).bit_length() - 1
        opened &= opened - 1
        if not graph.upstream[following] & ~cut:
            others |= 1 << following
    return others


class _IdleLayers:
    """Layers without time and parameters, which are moved across a cut so that it sends the fewest bytes.

    The bytes saved by adding one never shrink as a cut grows, so nested cuts stay nested.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.layers = sum(
            1 << index for index, layer in enumerate(graph.layers) if not layer.compute_s and not layer.parameter_bytes
        )
        self.sent = [
            layer.activation_bytes if down else 0.0 for layer, down in zip(graph.layers, graph.downstream, strict=True)
        ]

    def extend(self, cut: int, ready: int) -> tuple[int, int]:
        """Add every idle layer that does not increase the bytes sent. Returns the cut and its ready layers."""
        candidates = ready & self.layers
        while candidates:
            index = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            if self.sent[index] <= self._sent_only_to(index, cut):
                cut |= 1 << index
                ready = _ready(self.graph, ready & ~(1 << index), index, cut)
                candidates = ready & self.layers
        return cut, ready

    def _sent_only_to(self, index: int, cut: int) -> float:
        """Bytes of the outputs that cross the cut only because layer `index`, outside it, reads them."""
        graph = self.graph
        return sum(self.sent[up] for up in _indices(graph.upstream[index]) if graph.downstream[up] & ~cut == 1 << index)

    def is_wasteful(self, cut: int) -> bool:
        """True if the cut would send fewer bytes without one of its idle layers."""
        graph = self.graph
        for index in _indices(cut & self.layers):
            if not graph.downstream[index] & cut:
                without = cut & ~(1 << index)
                if self._sent_only_to(index, without) < self.sent[index]:
                    return True
        return False


def _indices(bits: int) -> list[int]:
    indices = []
    while bits:
        indices.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return indices
