"""Rounds a relaxed point of one selection to integer worker counts, with the point's flows fixed.

With fixed flows, operators and tiers compete only for workers. On exclusive classes every operator takes one of many
rounding patterns (rounding_patterns.py); on shared classes its load is distributed anew over integer counts. One small
MILP chooses all of this; which models fit together on a worker is left to bin_packing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jellybean_solver.fleet.integer_counts import FEW
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.relaxation import Point
from jellybean_solver.fleet.rounding.rounding_patterns import ways_near
from jellybean_solver.fleet.worker_classes import LEAST_BYTES
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Indices, Program, SolveLimits
from jellybean_solver.small.assignment import Assignment

WAYS = 40  # most rounding patterns per operator and tier
TRIES = 4  # most solves until all models fit onto workers
MOST_NODES = 50  # of the branch and bound of HiGHS, per solve


def rounded(
    joint_lp: JointLp, point: Point, most: Floats, *, gap: float, limit_s: Callable[[], float | None]
) -> Assignment | None:
    """An assignment with integer workers for a point of one selection, on its flows; None if none was found.

    `most`: upper limits of the columns m (workers paid per pool). `limit_s`: returns the seconds left, None without a
    limit. If models need more workers because of memory, the program is solved again with as many workers of the class
    left idle.
    """
    rounding, idle = _Rounding(joint_lp, point, most), np.zeros(len(joint_lp.kinds.kinds))
    best: Assignment | None = None
    for _ in range(TRIES):
        staff = rounding.solve(idle, gap, limit_s())
        if staff is None:
            break
        found = staff.assignment()
        if found is not None and (best is None or found.cost < best.cost):
            best = found
        more = np.where(np.isinf(staff.idle), 1.0, np.maximum(staff.idle - idle, 0.0))
        if not more.any():
            break
        idle += more
    return best


class _Shared:
    """Columns and rows of shared classes: integer workers with time and memory for all loads.

    A class that an operator uses has at least as many workers as the fraction of its requests, so at least one.
    """

    def __init__(self, program: Program, joint_lp: JointLp, held: Indices) -> None:
        self.program, self.kinds = program, joint_lp.kinds
        self.small = joint_lp.open & (self.kinds.workers < 1.0)
        count = len(self.kinds.kinds)
        most = np.where(self.kinds.exclusive, 0.0, self.kinds.counts)
        self.count = program.add_columns(np.zeros(count), most, integer=True)
        self.load, self.full = program.add_rows(-math.inf, 0.0, count), joint_lp.full >= 0
        self.memory = program.add_rows(-math.inf, 0.0, count)
        self.presence: dict[tuple[int, int], int] = {}  # (operator, class) -> row
        program.fill(self.load, self.count, -1.0)
        program.fill(self.memory, self.count, -1.0)
        program.fill(held, self.count, 1.0)

    def take(self, column: int, choice: int, kind: int) -> None:
        """Enter a column y (fraction of an operator's requests) into the rows of a class."""
        self.program.fill([int(self.load[kind])], [column], float(self.kinds.workers[choice, kind]))
        if self.full[kind]:
            self.program.fill([int(self.memory[kind])], [column], float(self.kinds.stored[choice, kind]))
        operator = int(self.kinds.owner[choice])
        if self.small[self.kinds.owner == operator, kind].any():
            if (operator, kind) not in self.presence:
                row = self.program.row(-math.inf, 0.0, [int(self.count[kind])], -1.0)
                self.presence[operator, kind] = row
            self.program.fill([self.presence[operator, kind]], [column], 1.0)


class _Rounding:
    """The MILP that chooses rounding patterns and distributes shared loads, for the flows of one point."""

    def __init__(self, joint_lp: JointLp, point: Point, most: Floats) -> None:
        self.joint_lp, self.point, self.program = joint_lp, point, Program()
        kinds = joint_lp.kinds
        best = np.where(point.chosen > 0.5, np.arange(len(point.chosen)), -1)
        self.choices = np.array([best[kinds.owner == o].max() for o in range(len(joint_lp.network.names))])
        self.prices = np.maximum(point.scarcity, kinds.price)
        paid = np.bincount(joint_lp.pools_kind, point.values[joint_lp.paid], len(kinds.kinds))
        self.room = kinds.counts - paid
        pools = [pool for kind in kinds.kinds for pool in kind.pools]
        price = joint_lp.network.usd_per_h
        costs = [price[pool.name] for pool in pools]
        self.held = self.program.add_rows(-math.inf, 0.0, len(kinds.kinds))
        self.program.fill(self.held[joint_lp.pools_kind], self.program.add_columns(costs, most), -1.0)
        self.shared = _Shared(self.program, joint_lp, self.held)
        self.ways: list[tuple[int, Indices, Floats, float]] = []  # operator, columns, patterns, fraction of requests
        self.rooms: dict[int, int] = {}  # class of few workers -> row of its memory
        self.parts: list[tuple[int, int, int]] = []  # operator, shared class, column
        for operator, choice in enumerate(self.choices.tolist()):
            for tier in range(len(joint_lp.tiers)):
                here = (kinds.tier == tier) & joint_lp.no_slower(choice, point.served[choice])
                self._alone(operator, choice, here & kinds.exclusive)
                self._together(operator, choice, np.flatnonzero(here & ~kinds.exclusive))

    def solve(self, idle: Floats, gap: float, time_limit_s: float | None) -> Staff | None:
        """Integer workers of the best solution, None if none was found. `idle`: per class, workers without load."""
        for row, workers in zip(self.shared.load.tolist(), idle.tolist(), strict=True):
            self.program.row_high[row] = -workers
        answer = self.program.solve(SolveLimits(gap, time_limit_s, most_nodes=MOST_NODES))
        if answer.values is None:
            return None
        shape = len(self.choices), len(self.joint_lp.kinds.kinds)
        served, counts = np.zeros(shape), np.zeros(shape, np.int64)
        for operator, columns, ways, share in self.ways:
            way = ways[int(np.argmax(answer.values[columns]))]
            room = way / np.where(way > 0, self.joint_lp.kinds.needed[self.choices[operator]], 1.0)
            served[operator] += share * room / room.sum()
            counts[operator] += way.astype(np.int64)
        for operator, kind, column in self.parts:
            served[operator, kind] += answer.values[column]
        return Staff(self.joint_lp, self.choices, self.point.values, served, counts)

    def _alone(self, operator: int, choice: int, here: Indices) -> None:
        """Add the choice of one pattern for the requests that the point serves on exclusive classes (`here`)."""
        kinds = self.joint_lp.kinds
        given = np.where(here, np.where(here, kinds.needed[choice], 0.0) * self.point.served[choice], 0.0)
        share = float(self.point.served[choice][here].sum())
        if share <= FEASIBILITY_TOLERANCE:
            return
        needed = np.where(here, kinds.needed[choice], math.inf)
        ways = ways_near(share, needed, self.prices, given, self.room, WAYS)
        columns = self.program.add_columns(np.zeros(len(ways)), 1.0, integer=True)
        one = self.program.add_rows(1.0, 1.0, 1)
        self.program.fill(np.repeat(one, len(columns)), columns, 1.0)
        way, kind = np.nonzero(ways)
        self.program.fill(self.held[kind], columns[way], ways[way, kind])
        self.ways.append((operator, columns, ways, share))

    def _together(self, operator: int, choice: int, kinds: Indices) -> None:
        """Add columns for the fractions served on shared classes; their sum is that of the point."""
        share = float(self.point.served[choice, kinds].sum())
        if share <= FEASIBILITY_TOLERANCE:
            return
        columns = self.program.add_columns(np.zeros(len(kinds)), 1.0)
        row = self.program.add_rows(share, share, 1)
        self.program.fill(np.repeat(row, len(columns)), columns, 1.0)
        if self.joint_lp.seconds is not None:  # no slower on average than in the point
            seconds = self.joint_lp.seconds[choice, kinds]
            late = self.program.add_rows(-math.inf, float(seconds @ self.point.served[choice, kinds]), 1)
            self.program.fill(np.repeat(late, len(columns)), columns, seconds)
        for kind, column in zip(kinds.tolist(), columns.tolist(), strict=True):
            self.shared.take(column, choice, kind)
            self._hold(column, choice, kind)
            self.parts.append((operator, kind, column))

    def _hold(self, column: int, choice: int, kind: int) -> None:
        """On classes of few workers, add rows that count each operator's models as integers within the memory."""
        kinds = self.joint_lp.kinds
        limit_bytes = kinds.kinds[kind].memory_bytes
        if limit_bytes is None or kinds.kinds[kind].count > FEW:
            return
        if kind not in self.rooms:
            self.rooms[kind] = self.program.row(-math.inf, 0.0, [int(self.shared.count[kind])], -1.0)
        models = self.program.column(0.0, kinds.counts[kind], integer=True)
        self.program.row(-math.inf, 0.0, [column, models], [max(float(kinds.workers[choice, kind]), 1.0), -1.0])
        share = float(kinds.memory_bytes[choice, kind]) / max(limit_bytes, LEAST_BYTES)
        self.program.fill([self.rooms[kind]], [models], share)
