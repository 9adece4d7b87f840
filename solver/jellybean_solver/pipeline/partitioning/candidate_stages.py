"""Costs of all candidate stages of a layer graph: every pair of nested cuts, as matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.partitioning.cut_short import check_time
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def cut_members(graph: LayerGraph, cuts: Sequence[int]) -> Bools:
    """Membership matrix, cuts x layers: True if the layer is in the cut's down-set."""
    width = -(-len(graph.layers) // 8)
    packed = np.frombuffer(b"".join(cut.to_bytes(width, "little") for cut in cuts), np.uint8).reshape(len(cuts), width)
    return np.unpackbits(packed, axis=1, count=len(graph.layers), bitorder="little").astype(np.bool_)


def crossing_bytes(graph: LayerGraph, members: Bools) -> Floats:
    """Bytes per micro-batch that cross each cut in the forward; an output read by several layers counts once."""
    total, inside = np.zeros(len(members)), np.ascontiguousarray(members.T)  # by layer, as they are read
    readers: list[list[int]] = [[] for _ in graph.layers]
    for up, down in graph.edges:
        readers[up].append(down)
    for index, downstream in enumerate(readers):
        if downstream:
            total += graph.layers[index].activation_bytes * (inside[index] & ~inside[downstream].all(axis=0))
    return total


class CandidateStages:
    """Every pair (i, j) of cuts with i a proper subset of j: the layers in j but not in i are a candidate stage.

    Attributes are size x size matrices over all pairs; entries where `invalid` (i is no proper subset of j) have no
    meaning. `forward_s`, `backward_s`: seconds of one micro-batch. `parameters`, `activations`: bytes of its weights,
    and of the outputs that its forward keeps for the backward. `crossing[i]`: bytes over cut i, one way. CutShortError
    at the time limit of the work.
    """

    def __init__(self, graph: LayerGraph, cuts: Sequence[int]) -> None:
        self.cuts, self.size = cuts, len(cuts)
        self._layers = range(len(graph.layers))
        members = cut_members(graph, cuts)
        as_floats, sizes = members.astype(np.float32), members.sum(axis=1)
        self.invalid = (as_floats @ as_floats.T != sizes[:, None]) | (sizes[:, None] >= sizes[None, :])

        def difference(per_layer: Sequence[float]) -> Floats:
            check_time(self.size)
            sums = members @ np.array(per_layer)
            matrix: Floats = sums[None, :] - sums[:, None]
            return matrix

        self.forward_s = difference([layer.forward_s for layer in graph.layers])
        self.backward_s = difference([layer.backward_s for layer in graph.layers])
        self.parameters = difference([layer.parameter_bytes for layer in graph.layers])
        self.activations = difference([layer.activation_bytes for layer in graph.layers])
        self.crossing = crossing_bytes(graph, members)

    @property
    def compute_s(self) -> Floats:
        """Forward plus backward seconds of one micro-batch."""
        return self.forward_s + self.backward_s

    def layers(self, start: int, end: int) -> tuple[int, ...]:
        """Layers of the candidate stage between the cuts with index `start` and `end`."""
        return tuple(i for i in self._layers if (self.cuts[end] & ~self.cuts[start]) >> i & 1)
