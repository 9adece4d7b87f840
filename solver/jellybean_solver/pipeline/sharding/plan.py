"""Alpa's intra-operator pass: one strategy per operator, so that computation and communication take the least time.

Zheng et al., OSDI 2022, section 4. An integer program: a binary per operator and strategy, and per edge the joint
choice of the producer's and the consumer's layouts, which costs the change from one to the other, in both passes. Joint
choices need no integrality, as they sum to the binaries on both sides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.highs_program import Floats, Program
from jellybean_solver.milp.pulp_program import FEASIBILITY_TOLERANCE
from jellybean_solver.pipeline.sharding.mesh import Mesh
from jellybean_solver.pipeline.sharding.operators import OperatorGraph, TensorEdge
from jellybean_solver.pipeline.sharding.strategies import Layout, MemoryRule, Strategy, resharding_s, strategies


@dataclass(frozen=True)
class ShardingPlan:
    """`strategies`: one per operator, in the graph's order. Seconds are per micro-batch; `memory_bytes` per device.

    All-reduces of weights' gradients, once an update, count by a micro-batch's part.
    """

    strategies: tuple[Strategy, ...]
    compute_s: float
    all_reduce_s: float
    resharding_s: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds per micro-batch, forward and backward."""
        return self.compute_s + self.all_reduce_s + self.resharding_s

    @property
    def communication_s(self) -> float:
        """Seconds per micro-batch in which nothing is computed."""
        return self.all_reduce_s + self.resharding_s


def plan_sharding(
    graph: OperatorGraph, mesh: Mesh, *, microbatches: int = 1, memory: MemoryRule | None = None
) -> ShardingPlan | None:
    """The plan of least seconds per micro-batch, proven; None if none fits into `memory`.

    `microbatches`: per update. SolverError if there is nothing to plan.
    """
    if not graph.operators or not mesh or microbatches < 1:
        raise SolverError("a sharding plan needs operators, a mesh of at least one axis and micro-batches")
    choices = [strategies(operator, mesh) for operator in graph.operators]
    only = all(len(each) == 1 for each in choices) and memory is None
    chosen = [each[0] for each in choices] if only else _Choice(graph, mesh, choices, microbatches, memory).solve()
    return None if chosen is None else score(graph, mesh, chosen, microbatches=microbatches, memory=memory)


def score(
    graph: OperatorGraph,
    mesh: Mesh,
    chosen: Sequence[Strategy],
    *,
    microbatches: int = 1,
    memory: MemoryRule | None = None,
) -> ShardingPlan:
    """Seconds and memory of chosen strategies; what the program minimises is asserted against it in tests."""
    moved = [
        edge_s(graph, edge, chosen[edge.producer].output, chosen[edge.consumer].inputs[edge.input_index], mesh)
        for edge in graph.edges
    ]
    rule = memory or MemoryRule(math.inf)
    return ShardingPlan(
        tuple(chosen),
        sum(own.compute_s for own in chosen),
        sum(own.activations_s + own.weights_s / microbatches for own in chosen),
        sum(moved),
        sum(own.memory_bytes(rule) for own in chosen),
    )


def edge_s(graph: OperatorGraph, edge: TensorEdge, given: Layout, wanted: Layout, mesh: Mesh) -> float:
    """Seconds to change a tensor's layout in the forward pass, and its gradient's in the backward pass."""
    size = graph.operators[edge.producer].output.size_bytes
    forward = resharding_s(size, given, wanted, mesh)
    if not graph.operators[edge.consumer].inputs[edge.input_index].gradient:
        return forward
    return forward + resharding_s(size, wanted, given, mesh)


class _Choice:
    """The integer program of one graph and mesh."""

    def __init__(
        self,
        graph: OperatorGraph,
        mesh: Mesh,
        choices: Sequence[Sequence[Strategy]],
        microbatches: int,
        memory: MemoryRule | None,
    ) -> None:
        self._graph, self._mesh, self._choices = graph, mesh, choices
        self._microbatches, self._memory = microbatches, memory
        self._program = Program()
        costs = [[own.seconds(microbatches) for own in each] for each in choices]
        self._unit_s = max(itertools.chain.from_iterable(costs)) or 1.0  # so that costs are near 1 for HiGHS
        self._columns = [
            self._program.add_columns([cost / self._unit_s for cost in each], 1.0, integer=True) for each in costs
        ]

    def solve(self) -> list[Strategy] | None:
        """The strategies of the optimum; None if none fits into the memory."""
        program = self._program
        for columns in self._columns:
            program.fill(np.repeat(program.add_rows(1.0, 1.0, 1), len(columns)), columns, 1.0)
        for edge in self._graph.edges:
            self._add_edge(edge)
        if self._memory is not None and math.isfinite(self._memory.limit_bytes):
            self._add_memory(self._memory)
        found = program.solve(relaxed=True)  # whole on trees of operators (the polytope of a tree has whole corners)
        if found.values is not None and not self._whole(found.values):
            found = program.solve()
        if found.values is None:
            return None
        return [
            each[int(found.values[columns].argmax())]
            for each, columns in zip(self._choices, self._columns, strict=True)
        ]

    def _whole(self, values: Floats) -> bool:
        """True if every operator has one strategy."""
        return all(values[columns].max() > 1.0 - FEASIBILITY_TOLERANCE for columns in self._columns)

    def _add_edge(self, edge: TensorEdge) -> None:
        """Columns for pairs of layouts; each layout's pairs sum to the strategies that have it."""
        program = self._program
        given = self._by_layout(edge.producer, [own.output for own in self._choices[edge.producer]])
        wanted = self._by_layout(edge.consumer, [own.inputs[edge.input_index] for own in self._choices[edge.consumer]])
        pairs = list(itertools.product(given, wanted))
        seconds = [edge_s(self._graph, edge, source, target, self._mesh) / self._unit_s for source, target in pairs]
        columns = program.add_columns(seconds, 1.0)
        for side, layouts in enumerate((given, wanted)):
            for layout, strategy_columns in layouts.items():
                own = [column for pair, column in zip(pairs, columns.tolist(), strict=True) if pair[side] == layout]
                row = int(program.add_rows(0.0, 0.0, 1)[0])
                program.fill([row] * len(own), own, 1.0)
                program.fill([row] * len(strategy_columns), strategy_columns, -1.0)

    def _by_layout(self, operator: int, layouts: Sequence[Layout]) -> dict[Layout, list[int]]:
        columns: dict[Layout, list[int]] = {}
        for layout, column in zip(layouts, self._columns[operator].tolist(), strict=True):
            columns.setdefault(layout, []).append(column)
        return columns

    def _add_memory(self, rule: MemoryRule) -> None:
        program = self._program
        row = int(program.add_rows(-math.inf, 1.0, 1)[0])
        for each, columns in zip(self._choices, self._columns, strict=True):
            shares = [own.memory_bytes(rule) / rule.limit_bytes for own in each]
            program.fill([row] * len(columns), columns, shares)
