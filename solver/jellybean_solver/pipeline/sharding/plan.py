"""Alpa's intra-operator pass: one strategy per operator, so that computation and communication take the least time.

Zheng et al., OSDI 2022, section 4. Variables are eliminated one by one (`elimination.py`). Where that would need too
large a table, or its plan does not fit into the memory, an integer program follows: a binary per operator and strategy,
and per edge the joint choice of the producer's and the consumer's layouts, which costs the change from one to the
other, in both passes. Joint choices need no integrality, as they sum to the binaries on both sides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Program
from jellybean_solver.pipeline.sharding.costs import StrategyCosts, strategy_costs
from jellybean_solver.pipeline.sharding.elimination import CostTable, least_choices
from jellybean_solver.pipeline.sharding.mesh import Mesh
from jellybean_solver.pipeline.sharding.operators import OperatorGraph, TensorEdge
from jellybean_solver.pipeline.sharding.strategies import Layout, MemoryRule, Strategy


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
    return plan_operators(strategy_costs(graph, mesh, microbatches), range(len(graph.operators)), memory)


def plan_operators(
    costs: StrategyCosts, numbers: Sequence[int], memory: MemoryRule | None = None
) -> ShardingPlan | None:
    """The plan of some operators of a graph alone; what they read from others comes to them in any layout."""
    if memory is not None and _least_bytes(costs, numbers, memory) > memory.limit_bytes:
        return None
    free = _by_elimination(costs, numbers)
    if free is not None:
        plan = score(costs, free, memory)
        if memory is None or plan.memory_bytes <= memory.limit_bytes:
            return plan
    chosen = _Choice(costs, numbers, memory).solve()
    return None if chosen is None else score(costs, chosen, memory)


def _least_bytes(costs: StrategyCosts, numbers: Sequence[int], rule: MemoryRule) -> float:
    """Memory of a device if every operator had the strategy that needs least."""
    return sum(min(strategy.memory_bytes(rule) for strategy in costs.choices[number]) for number in numbers)


def score(costs: StrategyCosts, chosen: dict[int, int], memory: MemoryRule | None = None) -> ShardingPlan:
    """Seconds and memory of a choice of strategies. `chosen`: operator -> index of its strategy."""
    picked = [costs.choices[number][index] for number, index in sorted(chosen.items())]
    rule = memory or MemoryRule(math.inf)
    return ShardingPlan(
        tuple(picked),
        sum(strategy.compute_s for strategy in picked),
        sum(strategy.activations_s + strategy.weights_s / costs.microbatches for strategy in picked),
        sum(float(costs.moved[edge][chosen[edge.producer], chosen[edge.consumer]]) for edge in _edges(costs, chosen)),
        sum(strategy.memory_bytes(rule) for strategy in picked),
    )


def _edges(costs: StrategyCosts, numbers: Sequence[int] | dict[int, int]) -> list[TensorEdge]:
    members = set(numbers)
    return [edge for edge in costs.graph.edges if edge.producer in members and edge.consumer in members]


def _by_elimination(costs: StrategyCosts, numbers: Sequence[int]) -> dict[int, int] | None:
    single = [CostTable((number,), costs.seconds[number]) for number in numbers]
    pairs = [CostTable((edge.producer, edge.consumer), costs.moved[edge]) for edge in _edges(costs, numbers)]
    return least_choices({number: len(costs.choices[number]) for number in numbers}, [*single, *pairs])


class _Choice:
    """The integer program of some operators."""

    def __init__(self, costs: StrategyCosts, numbers: Sequence[int], memory: MemoryRule | None) -> None:
        self._costs, self._numbers, self._memory = costs, numbers, memory
        self._program = Program()
        seconds = {number: costs.seconds[number] for number in numbers}
        self._unit_s = max(float(each.max()) for each in seconds.values()) or 1.0  # so that costs are near 1 for HiGHS
        self._columns = {
            number: self._program.add_columns(each / self._unit_s, 1.0, integer=True)
            for number, each in seconds.items()
        }

    def solve(self) -> dict[int, int] | None:
        """The optimum, by operator the index of its strategy; None if nothing fits into the memory."""
        program = self._program
        for columns in self._columns.values():
            program.fill(np.repeat(program.add_rows(1.0, 1.0, 1), len(columns)), columns, 1.0)
        for edge in _edges(self._costs, self._numbers):
            self._add_edge(edge)
        if self._memory is not None and math.isfinite(self._memory.limit_bytes):
            self._add_memory(self._memory)
        solution = program.solve(relaxed=True)  # whole on trees of operators without a memory limit
        if solution.values is not None and not self._whole(solution.values):
            solution = program.solve()
        if solution.values is None:
            return None
        return {number: int(solution.values[columns].argmax()) for number, columns in self._columns.items()}

    def _whole(self, values: Floats) -> bool:
        """True if every operator has one strategy."""
        return all(values[columns].max() > 1.0 - FEASIBILITY_TOLERANCE for columns in self._columns.values())

    def _add_edge(self, edge: TensorEdge) -> None:
        """Columns for pairs of layouts; each layout's pairs sum to the strategies that have it."""
        program, choices, moved = self._program, self._costs.choices, self._costs.moved[edge]
        given = _by_layout([strategy.output for strategy in choices[edge.producer]])
        wanted = _by_layout([strategy.inputs[edge.input_index] for strategy in choices[edge.consumer]])
        pairs = list(itertools.product(given, wanted))
        seconds = [float(moved[given[source][0], wanted[target][0]]) / self._unit_s for source, target in pairs]
        columns = program.add_columns(seconds, 1.0)
        for side, (layouts, operator) in enumerate(((given, edge.producer), (wanted, edge.consumer))):
            for layout, indices in layouts.items():
                joint = [column for pair, column in zip(pairs, columns.tolist(), strict=True) if pair[side] == layout]
                row = int(program.add_rows(0.0, 0.0, 1)[0])
                program.fill([row] * len(joint), joint, 1.0)
                program.fill([row] * len(indices), self._columns[operator][indices], -1.0)

    def _add_memory(self, rule: MemoryRule) -> None:
        program = self._program
        row = int(program.add_rows(-math.inf, 1.0, 1)[0])
        for number, columns in self._columns.items():
            shares = [strategy.memory_bytes(rule) / rule.limit_bytes for strategy in self._costs.choices[number]]
            program.fill([row] * len(columns), columns, shares)


def _by_layout(layouts: Sequence[Layout]) -> dict[Layout, list[int]]:
    """Indices of strategies by their layout of a tensor."""
    indices: dict[Layout, list[int]] = {}
    for index, layout in enumerate(layouts):
        indices.setdefault(layout, []).append(index)
    return indices
