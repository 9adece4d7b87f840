"""Rounds a relaxed point of one selection to integer counts of shared workers, with flows free to change.

One small MILP chooses fractions, flows and the workers of every chain (wrap_around_packing.py) at once. It contains
only the classes that the point uses and a few more. Classes of few workers keep their counts and models.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jellybean_solver.fleet.integer_counts import FEW
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.packing.wrap_around_packing import Chain, chains_of
from jellybean_solver.fleet.relaxation import Point
from jellybean_solver.fleet.worker_classes import LEAST_BYTES, WorkerClass
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Program, SolveLimits
from jellybean_solver.small.assignment import Assignment

CLASSES, CLASSES_THOROUGH = 1, 2  # worker classes per operator and tier beside those that a point uses
TRIES = 3  # most solves until all models fit onto workers
MOST_NODES = 40  # of the branch and bound of HiGHS, per solve
TIRED = 0.5  # share of the time at the start: with less left, the program is not solved again


def whole_near(
    joint_lp: RelaxedLp,
    point: Point,
    most: Floats,
    *,
    gap: float,
    enough: float,
    limit_s: Callable[[], float | None],
    thorough: bool = False,
) -> Assignment | None:
    """A plan with whole workers near a point of one selection; None if none was found.

    `most`: upper limits of the columns m (workers paid per pool). `enough`: USD per hour; a plan as cheap ends the
    rounding. `limit_s`: returns the seconds left. `thorough`: with more worker classes and all heuristics of HiGHS.
    A chain that would put three models onto one worker gets another worker, and the program is solved again.
    """
    near, best = _Near(joint_lp, point, most, CLASSES_THOROUGH if thorough else CLASSES), None
    first_s = limit_s()
    for number in range(TRIES):
        left_s = limit_s() if number else first_s
        if left_s is not None and first_s is not None and left_s < TIRED * first_s:
            break
        staff = near.solve(gap, enough, left_s, not thorough)
        if staff is None:
            break
        found = staff.assignment()
        if found is not None and (best is None or found.cost < best.cost):
            best = found
        if (best is not None and best.cost <= enough) or not near.make_room(staff):
            break
    return best


class _Near:
    """The joint LP's program with fixed selection and fixed counts of few workers; all other counts are integer."""

    def __init__(self, joint_lp: RelaxedLp, point: Point, most: Floats, more: int) -> None:
        self.joint_lp, self.point, self.kinds = joint_lp, point, joint_lp.kinds
        integer_counts = joint_lp.integer_counts
        self.paid = np.bincount(
            integer_counts.kind_of, np.round(point.counted[: integer_counts.pools]), len(self.kinds.kinds)
        )
        self.program = self._fixed(most)
        best = np.where(point.chosen > 0.5, np.arange(len(point.chosen)), -1)
        self.choices = np.array([best[self.kinds.owner == o].max() for o in range(len(joint_lp.network.names))])
        self.held = self.program.add_rows(-math.inf, 0.0, len(self.kinds.kinds))
        self.program.fill(self.held[joint_lp.pools_kind], joint_lp.paid, -1.0)
        self.served: dict[tuple[int, int], int] = {}  # operator, class -> column
        for operator, choice in enumerate(self.choices.tolist()):
            for tier in range(len(joint_lp.tiers)):
                self._take(operator, choice, tier, more)
        self.chains: dict[int, tuple[tuple[Chain, int, int], ...]] = {}  # class -> chains, columns, rows
        self.workers: dict[int, tuple[dict[int, int], ...]] = {}  # class of few -> per worker, operator -> column
        for index, kind in enumerate(self.kinds.kinds):
            operators = [operator for operator, own in self.served if own == index]
            if operators and kind.count <= FEW:
                self._by_worker(index, kind, operators)
            elif operators:
                self._together(index, kind, operators)

    def _fixed(self, most: Floats) -> Program:
        own, integer_counts = self.joint_lp.program, self.joint_lp.integer_counts
        low, high, row_high = np.concatenate(own.low), np.concatenate(own.high), list(own.row_high)
        high[self.joint_lp.paid] = most
        high[self.joint_lp.served[self.joint_lp.open]] = 0.0
        for row in self.joint_lp.link_rows.tolist():
            row_high[row] = self.joint_lp.links
        if self.joint_lp.seconds is not None:
            high[self.joint_lp.at_hand] = self.joint_lp.share * self.joint_lp.left_s
        high[self.joint_lp.chosen] = low[self.joint_lp.chosen] = np.round(self.point.chosen)
        low[integer_counts.columns] = high[integer_counts.columns] = np.round(self.point.counted)
        return Program(
            list(own.cost),
            [low],
            [high],
            [np.zeros(own.columns, bool)],
            own.columns,
            list(own.row_low),
            row_high,
            list(own.entries),
        )

    def _take(self, operator: int, choice: int, tier: int, more: int) -> None:
        """Add an operator's columns y on the classes of a tier that the point uses, and on `more` cheap others."""
        kinds, joint_lp = self.kinds, self.joint_lp
        here = np.flatnonzero((kinds.tier == tier) & joint_lp.no_slower(choice, self.point.served[choice]))
        used = self.point.served[choice, here] > FEASIBILITY_TOLERANCE
        if not used.any():
            return
        price = kinds.needed[choice, here] * np.maximum(self.point.scarcity, kinds.price)[here]
        integer_counts = ~used & (kinds.counts[here] <= FEW)
        order = np.argsort(np.where(used, -1.0, np.where(integer_counts, math.inf, price)), kind="stable")
        for kind in here[order[: int(used.sum()) + min(more, int((~used & ~integer_counts).sum()))]].tolist():
            column = self.served[operator, kind] = int(joint_lp.served[choice, kind])
            self.program.high[0][column] = 1.0

    def _together(self, index: int, kind: WorkerClass, operators: list[int]) -> None:
        kinds = self.kinds
        choice = {operator: int(self.choices[operator]) for operator in operators}
        memory = {o: float(kinds.memory_bytes[c, index]) for o, c in choice.items()}
        loads = {o: float(kinds.workers[c, index] * self.point.served[c, index]) for o, c in choice.items()}
        used = {o: memory[o] for o in operators if self.point.served[choice[o], index] > FEASIBILITY_TOLERANCE}
        others = {o: memory[o] for o in operators if o not in used}
        chains = chains_of(kind, used, loads, others)
        counts = self.program.add_columns(np.zeros(len(chains)), kinds.counts[index], integer=True)
        rows = self.program.add_rows(-math.inf, 0.0, len(chains))
        self.program.fill(rows, counts, -1.0)
        for row, chain, count in zip(rows.tolist(), chains, counts.tolist(), strict=True):
            columns = [self.served[o, index] for o in chain]
            self.program.fill([row] * len(chain), columns, [float(kinds.workers[choice[o], index]) for o in chain])
            for operator, column in zip(chain, columns, strict=True):
                if kinds.workers[choice[operator], index] < 1.0:
                    self.program.row(-math.inf, 0.0, [column, count], [1.0, -1.0])
        self.program.fill(np.repeat(self.held[index], len(chains)), counts, 1.0)
        self.chains[index] = tuple(zip(chains, counts.tolist(), rows.tolist(), strict=True))

    def _by_worker(self, index: int, kind: WorkerClass, operators: list[int]) -> None:
        """Add columns for the fraction that each worker of a class of few serves, within its time and memory."""
        kinds, paid = self.kinds, int(self.paid[index])
        own = {operator: self.program.add_columns(np.zeros(paid), 1.0) for operator in operators}
        limits = [(at, limit) for at, limit in enumerate(kind.limits) if limit is not None]
        time, *memory = (self.program.add_rows(-math.inf, 1.0, paid) for _ in range(1 + len(limits)))
        for operator, columns in own.items():
            choice = self.choices[operator]
            held = self.program.add_columns(np.zeros(paid), 1.0, integer=True)
            there = self.program.add_rows(-math.inf, 0.0, paid)
            every = self.program.row(0.0, 0.0, [self.served[operator, index]], -1.0)
            self.program.fill([every] * paid, columns, 1.0)
            self.program.fill(there, columns, 1.0)
            self.program.fill(there, held, -1.0)
            self.program.fill(time, columns, float(kinds.workers[choice, index]))
            for rows, (at, limit) in zip(memory, limits, strict=True):
                self.program.fill(rows, held, kinds.memory(choice, index)[at] / max(limit, LEAST_BYTES))
        self.workers[index] = tuple(
            {operator: int(columns[number]) for operator, columns in own.items()} for number in range(paid)
        )

    def solve(self, gap: float, enough: float, time_limit_s: float | None, quick: bool) -> Staff | None:
        limits = SolveLimits(gap, time_limit_s, enough=enough, most_nodes=MOST_NODES, quick=quick)
        answer = self.program.solve(limits)
        if answer.values is None:
            return None
        shape = len(self.choices), len(self.kinds.kinds)
        served = np.zeros(shape)
        for pair, column in self.served.items():
            served[pair] = max(0.0, float(answer.values[column]))
        chains = {
            kind: tuple((chain, round(answer.values[column])) for chain, column, _ in own)
            for kind, own in self.chains.items()
        }
        names, values = self.joint_lp.network.names, answer.values
        seats = {
            kind: tuple(
                (
                    1,
                    {
                        names[o]: float(values[column])
                        for o, column in own.items()
                        if values[column] > FEASIBILITY_TOLERANCE
                    },
                )
                for own in workers
            )
            for kind, workers in self.workers.items()
        }
        return Staff(self.joint_lp, self.choices, values, served, np.zeros(shape, np.int64), chains, seats)

    def make_room(self, staff: Staff) -> bool:
        """Tighten the rows of chains that need more workers because of memory. Returns whether there are any."""
        found = False
        for kind, number, extra in staff.extras():
            row = self.chains[kind][number][2]
            self.program.row_high[row] -= extra
            found = True
        return found
