"""What lies between two cuts of a layer graph, for all pairs of them at once: the partitioners' figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.layers import LayerGraph

Floats = npt.NDArray[np.float64]


class Spans:
    """A span is a pair of cuts (i, j), i inside j; matrices are over all pairs, and mean nothing where `outside`.

    `forward_s`, `backward_s`: of one micro-batch. `activations`: bytes that its forward leaves for its backward.
    `crossing`: cut -> bytes that are sent over it, one way.
    """

    def __init__(self, graph: LayerGraph, cuts: Sequence[int]) -> None:
        self.cuts, self.size = cuts, len(cuts)
        self._layers = range(len(graph.layers))
        held = np.array([[cut >> index & 1 for index in self._layers] for cut in cuts], dtype=np.float64)
        sizes = held.sum(axis=1)
        inside = (held @ held.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
        self.outside = ~inside

        def between(figures: Sequence[float]) -> Floats:
            sums = held @ np.array(figures)
            found: Floats = sums[None, :] - sums[:, None]
            return found

        self.forward_s = between([layer.forward_s for layer in graph.layers])
        self.backward_s = between([layer.backward_s for layer in graph.layers])
        self.parameters = between([layer.parameter_bytes for layer in graph.layers])
        self.activations = between([layer.activation_bytes for layer in graph.layers])
        self.crossing = np.array([graph.crossing_bytes(cut) for cut in cuts])

    @property
    def both_s(self) -> Floats:
        return self.forward_s + self.backward_s

    def layers(self, start: int, end: int) -> tuple[int, ...]:
        """The layers of a span, by place in the graph."""
        return tuple(i for i in self._layers if (self.cuts[end] & ~self.cuts[start]) >> i & 1)
