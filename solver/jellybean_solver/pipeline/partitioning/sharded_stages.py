"""Candidate stages that are split over a submesh; the time of each is the optimum of the intra-operator pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jellybean_solver.pipeline.partitioning.alpa import Submesh
from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_short import check_time
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.layer_graph import Layer, LayerGraph
from jellybean_solver.pipeline.sharding.costs import strategy_costs
from jellybean_solver.pipeline.sharding.operators import (
    IN,
    OUT,
    SAMPLE,
    DimensionedTensor,
    Operator,
    OperatorGraph,
    TensorEdge,
)
from jellybean_solver.pipeline.sharding.plan import ShardingPlan, plan_operators
from jellybean_solver.pipeline.sharding.strategies import MemoryRule


class ShardedStages:
    """Stages whose operators are split over their submesh. Each is planned once, when its time is first needed."""

    def __init__(
        self,
        graph: LayerGraph,
        candidates: CandidateStages,
        meshes: Sequence[Submesh],
        microbatches: int,
        limit: MemoryLimit | None = None,
    ) -> None:
        self.meshes, self.counted = meshes, limit is not None
        operators = operators_of(graph)
        self._candidates, self._limit = candidates, limit
        self._costs = [strategy_costs(operators, mesh.axes, microbatches) for mesh in meshes]
        self._plans: dict[tuple[int, MemoryRule | None], dict[tuple[int, int], ShardingPlan]] = {}

    def seconds(self, mesh: int, stages_behind: int) -> Floats:
        """Computation and communication of the best plan."""
        times = np.full((self._candidates.size, self._candidates.size), np.inf)
        for (start, end), plan in self._planned(mesh, stages_behind).items():
            times[start, end] = plan.seconds
        return times

    def sharding(self, mesh: int, stages_behind: int, start: int, end: int) -> ShardingPlan | None:
        """The plan of a candidate stage; None if none fits."""
        return self._planned(mesh, stages_behind).get((start, end))

    def _planned(self, mesh: int, stages_behind: int) -> dict[tuple[int, int], ShardingPlan]:
        rule = self._memory_rule(stages_behind)
        if (mesh, rule) not in self._plans:
            pairs = np.argwhere(~self._candidates.invalid).tolist()
            plans = {(start, end): self._plan(mesh, rule, start, end) for start, end in pairs}
            self._plans[mesh, rule] = {pair: plan for pair, plan in plans.items() if plan is not None}
        return self._plans[mesh, rule]

    def _plan(self, mesh: int, rule: MemoryRule | None, start: int, end: int) -> ShardingPlan | None:
        check_time()
        return plan_operators(self._costs[mesh], self._candidates.layers(start, end), rule)

    def _memory_rule(self, stages_behind: int) -> MemoryRule | None:
        if self._limit is None:
            return None
        in_flight = self._limit.in_flight_sharded(stages_behind)
        return MemoryRule(self._limit.limit_bytes, float(self._limit.weight_copies(in_flight)), float(in_flight))


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
