"""The joint program with whole workers, solved at once: selection, places, flows and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.joint_lp import Skeleton
from jellybean_solver.fleet.worker_counts import Staff
from jellybean_solver.milp.highs_program import Indices, Program


def exact(
    network: Network,
    target: float | None,
    fixed: Mapping[str, str],
    *,
    excluded: Sequence[Mapping[str, str]] = (),
    cutoff: float,
    gap: float,
    time_limit_s: float | None,
    pace: Pace | None = None,
) -> tuple[Staff | None, float]:
    """The cheapest selection and workers not dearer than `cutoff`, to a relative gap; and a bound that holds anyway.

    Memory is left to seating.py. `fixed`: operators whose variant is given; `excluded`: selections. The bound is inf
    when there is nothing that cheap.
    """
    skeleton = Skeleton(network, target, fixed, pace)
    if not skeleton.possible:
        return None, math.inf
    return _Exact(skeleton).solve(excluded, cutoff, gap, time_limit_s)


class Shared:
    """Whole workers of shared kinds: time and memory for all loads, and some worker wherever an operator runs."""

    def __init__(self, program: Program, skeleton: Skeleton, held: Indices) -> None:
        self.program, self.kinds = program, skeleton.kinds
        self.small = skeleton.open & (self.kinds.workers < 1.0)
        count = len(self.kinds.kinds)
        most = np.where(self.kinds.exclusive, 0.0, self.kinds.counts)
        self.count = program.add_columns(np.zeros(count), most, integer=True)
        self.load, self.full = program.add_rows(-math.inf, 0.0, count), skeleton.full >= 0
        self.memory = program.add_rows(-math.inf, 0.0, count)
        self.presence: dict[tuple[int, int], int] = {}  # (operator, kind) -> row
        program.fill(self.load, self.count, -1.0)
        program.fill(self.memory, self.count, -1.0)
        program.fill(held, self.count, 1.0)

    def take(self, column: int, choice: int, kind: int) -> None:
        """A fraction of an operator's requests."""
        self.program.fill([int(self.load[kind])], [column], float(self.kinds.workers[choice, kind]))
        if self.full[kind]:
            self.program.fill([int(self.memory[kind])], [column], float(self.kinds.stored[choice, kind]))
        operator = int(self.kinds.owner[choice])
        if self.small[self.kinds.owner == operator, kind].any():
            if (operator, kind) not in self.presence:
                row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
                self.program.fill([row], [int(self.count[kind])], -1.0)
                self.presence[operator, kind] = row
            self.program.fill([self.presence[operator, kind]], [column], 1.0)


class _Exact:
    """The skeleton with its columns y and whole workers."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton, self.program = skeleton, skeleton.program
        kinds = skeleton.kinds
        self.choices, self.own = np.nonzero(skeleton.open)
        self.served = self.program.add_columns(np.zeros(len(self.own)), 1.0)
        self.counts: dict[tuple[int, int], int] = {}  # (operator, exclusive kind) -> column
        self.rows: dict[tuple[int, int], int] = {}
        shared = Shared(self.program, skeleton, skeleton.held)
        for choice, kind, column in zip(
            *(part.tolist() for part in (self.choices, self.own, self.served)), strict=True
        ):
            rows, values = skeleton.entries(choice, int(kinds.tier[kind]))
            more, weights = skeleton.few.entries(choice, kind)
            self.program.fill(rows + more, [column] * len(rows + more), values + weights)
            if skeleton.seconds is not None:
                timed = skeleton.timed[int(kinds.owner[choice])]
                self.program.fill(timed, [column] * len(timed), float(skeleton.seconds[choice, kind]))
            if kinds.exclusive[kind]:
                row = self._counted(int(kinds.owner[choice]), kind)
                self.program.fill([row], [column], float(kinds.needed[choice, kind]))
            else:
                shared.take(column, choice, kind)

    def _counted(self, operator: int, kind: int) -> int:
        """The row under which an operator's requests keep its own workers of a kind busy."""
        if (operator, kind) not in self.rows:
            count = int(self.program.add_columns([0.0], float(self.skeleton.kinds.counts[kind]), integer=True)[0])
            row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
            self.program.fill([row, int(self.skeleton.held[kind])], [count, count], [-1.0, 1.0])
            self.counts[operator, kind], self.rows[operator, kind] = count, row
        return self.rows[operator, kind]

    def solve(
        self, excluded: Sequence[Mapping[str, str]], cutoff: float, gap: float, time_limit_s: float | None
    ) -> tuple[Staff | None, float]:
        kinds, names = self.skeleton.kinds, self.skeleton.network.names
        column = dict(zip(kinds.choices, self.skeleton.chosen.tolist(), strict=True))
        for selection in excluded:
            row = int(self.program.add_rows(-math.inf, len(names) - 1.0, 1)[0])
            self.program.fill([row] * len(names), [column[choice] for choice in selection.items()], 1.0)
        if math.isfinite(cutoff):
            self.program.limit_cost(cutoff)
        answer = self.program.solve(gap=gap, time_limit_s=time_limit_s)
        if answer.values is None:
            return None, answer.bound
        made = np.flatnonzero(answer.values[self.skeleton.chosen] > 0.5)
        shape = len(names), len(kinds.kinds)
        served, workers = np.zeros(shape), np.zeros(shape, np.int64)
        mine = np.isin(self.choices, made)
        served[kinds.owner[self.choices[mine]], self.own[mine]] = answer.values[self.served[mine]]
        for pair, count in self.counts.items():
            workers[pair] = round(answer.values[count])
        return Staff(self.skeleton, made[np.argsort(kinds.owner[made])], answer.values, served, workers), answer.bound
