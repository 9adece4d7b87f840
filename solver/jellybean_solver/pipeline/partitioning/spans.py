"""What lies between two cuts of a layer graph, for all pairs of them at once: the partitioners' figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def held_layers(graph: LayerGraph, cuts: Sequence[int]) -> Bools:
    """By cut and layer."""
    width = -(-len(graph.layers) // 8)
    packed = np.frombuffer(b"".join(cut.to_bytes(width, "little") for cut in cuts), np.uint8).reshape(len(cuts), width)
    return np.unpackbits(packed, axis=1, count=len(graph.layers), bitorder="little").astype(np.bool_)


def crossing_bytes(graph: LayerGraph, held: Bools) -> Floats:
    """What each cut's layers send to the others: each output once, whoever reads it."""
    found = np.zeros(len(held))
    readers: list[list[int]] = [[] for _ in graph.layers]
    for up, down in graph.edges:
        readers[up].append(down)
    for index, own in enumerate(readers):
        if own:
            found += graph.layers[index].activation_bytes * (held[:, index] & ~held[:, own].all(axis=1))
    return found


class Spans:
    """A span is a pair of cuts (i, j), i inside j; matrices are over all pairs, and mean nothing where `outside`.

    `forward_s`, `backward_s`: of one micro-batch. `activations`: bytes that its forward leaves for its backward.
    `crossing`: cut -> bytes that are sent over it, one way.
    """

    def __init__(self, graph: LayerGraph, cuts: Sequence[int]) -> None:
        self.cuts, self.size = cuts, len(cuts)
        self._layers = range(len(graph.layers))
        held = held_layers(graph, cuts)
        shared, sizes = held.astype(np.float32), held.sum(axis=1)
        self.outside = (shared @ shared.T != sizes[:, None]) | (sizes[:, None] >= sizes[None, :])

        def between(figures: Sequence[float]) -> Floats:
            sums = held @ np.array(figures)
            found: Floats = sums[None, :] - sums[:, None]
            return found

        self.forward_s = between([layer.forward_s for layer in graph.layers])
        self.backward_s = between([layer.backward_s for layer in graph.layers])
        self.parameters = between([layer.parameter_bytes for layer in graph.layers])
        self.activations = between([layer.activation_bytes for layer in graph.layers])
        self.crossing = crossing_bytes(graph, held)

    @property
    def both_s(self) -> Floats:
        return self.forward_s + self.backward_s

    def layers(self, start: int, end: int) -> tuple[int, ...]:
        """The layers of a span, by place in the graph."""
        return tuple(i for i in self._layers if (self.cuts[end] & ~self.cuts[start]) >> i & 1)
