"""Candidate stages that are split over a submesh; the time of each is the optimum of the intra-operator pass."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean_solver.pipeline.partitioning.layer_graph import Layer, LayerGraph
from jellybean_solver.pipeline.sharding.operators import (
    IN,
    OUT,
    SAMPLE,
    DimensionedTensor,
    Operator,
    OperatorGraph,
    TensorEdge,
)


def operators_of(graph: LayerGraph) -> OperatorGraph:
    """The layers of a profile as operators.

    A layer with parameters is taken for a matrix product (or a convolution, over its channels); one without computes on
    each sample alone, and its features stay whole, as a profile does not say how they depend on each other.
    """
    needs: list[list[int]] = [[] for _ in graph.layers]
    for up, down in graph.edges:
        needs[down].append(up)
    trained = _trained_above(graph.layers, needs)
    operators = [
        _operator(layer, [graph.layers[up].activation_bytes for up in ups], [trained[up] for up in ups])
        for layer, ups in zip(graph.layers, needs, strict=True)
    ]
    edges = [TensorEdge(up, down, index) for down, ups in enumerate(needs) for index, up in enumerate(ups)]
    return OperatorGraph(tuple(operators), tuple(edges))


def _trained_above(layers: Sequence[Layer], needs: Sequence[Sequence[int]]) -> list[bool]:
    """Per layer, whether it or a layer before it has parameters, so that its output takes a gradient."""
    trained: list[bool] = []
    for layer, ups in zip(layers, needs, strict=True):
        trained.append(layer.parameter_bytes > 0 or any(trained[up] for up in ups))
    return trained


def _operator(layer: Layer, read_bytes: Sequence[float], gradients: Sequence[bool]) -> Operator:
    sizes = list(zip(read_bytes, gradients, strict=True))
    if layer.parameter_bytes > 0:
        inputs = tuple(DimensionedTensor((SAMPLE, IN), size, gradient) for size, gradient in sizes)
        weight = DimensionedTensor((IN, OUT), layer.parameter_bytes)
        output = DimensionedTensor((SAMPLE, OUT), layer.activation_bytes)
        return Operator(layer.name, layer.compute_s, inputs, output, (weight,))
    inputs = tuple(DimensionedTensor((SAMPLE, IN), size, gradient) for size, gradient in sizes)
    output = DimensionedTensor((SAMPLE, OUT), layer.activation_bytes)
    return Operator(layer.name, layer.compute_s, inputs, output, whole=frozenset({IN, OUT}))
