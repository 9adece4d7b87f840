"""The program of many workflows together: all columns of each workflow's own, and rows for what they have in common.

In place of a workflow's column for the cheapest common shared pool of a tier (local_program.py) there is one for each.
Its linear relaxation gives the first prices, near those at which the workflows' exact plans fit together, so that few
rounds are left (search.py). With few variants left open, it makes one plan of a mixture of plans.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.local_plan import LocalPlan
from jellybean_solver.decomposition.local_program import LocalProgram
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import Floats, Indices, Program, SolveLimits, run

LITTLE = 1e-3  # fraction of a variant, or of a worker: less is not in a mixture, or next to no time
DEAREST = 20.0  # price at which capacity may be exceeded, over what is paid for it: so the relaxation has a point


@dataclass(frozen=True)
class Relaxation:
    """The linear relaxation's prices, and per workflow the (operator, variant) pairs that it mixes."""

    prices: Prices
    variants: list[set[tuple[str, str]]]


def relaxation(split: Split, programs: Sequence[LocalProgram], weight: float) -> Relaxation:
    """The relaxation of these workflows, each of which stands for `weight`."""
    union = _Union(split, weight, relaxed=True)
    for program in programs:
        union.add(program, None)
    return union.relaxation()


def planned_together(
    split: Split,
    programs: Sequence[LocalProgram],
    variants: Sequence[Collection[tuple[str, str]] | None],
    limits: SolveLimits,
) -> tuple[list[LocalPlan] | None, float]:
    """A plan for each workflow that is served, the cheapest together, with the bound on that; None if none was found.

    `variants`: the (operator, variant) pairs from which each workflow may choose; None: all.
    """
    union = _Union(split, 1.0, relaxed=False)
    for program, own in zip(programs, variants, strict=True):
        union.add(program, own)
    return union.plans(limits)


@dataclass(frozen=True)
class _Part:
    """A workflow in the union: the places of its columns, and of its offers; -1 where there is none.

    `left_out`: the column that leaves it out, if that is possible.
    """

    local: LocalProgram
    placed: Indices
    offered: Indices
    left_out: Indices

    def plan(self, values: Floats) -> LocalPlan:
        """Its plan at a solution of the union."""
        own = np.where(self.placed >= 0, values[self.placed], 0.0)
        spread = np.where(self.offered >= 0, values[self.offered], 0.0)
        own[self.local.offers.column] = spread.sum(axis=1)
        return self.local.plan(own, spread, Prices.listed(self.local.split))


class _Union:
    """The program of several workflows. `rows`: those of common capacity, by kind of price.

    `relaxed`: without integrality, and capacity may be exceeded at high prices, so that there is a point.
    """

    def __init__(self, split: Split, weight: float, *, relaxed: bool) -> None:
        self._program, self._weight = Program(), weight
        self._parts: list[_Part] = []
        program, shared = self._program, len(split.shared)
        paid = [split.problem.unit_usd_per_h(pool) for pool in split.shared]
        most = np.array([float(pool.count) for pool in split.shared])
        alone = np.array([float(pool.count) for pool in split.exclusive])
        self._relaxed, self._counts = relaxed, program.add_columns(paid, most, integer=not relaxed)
        counts = self._counts
        time, memory = (program.add_rows(np.full(shared, -math.inf), 0.0, shared) for _ in range(2))
        for rows in (time, memory):
            program.fill(rows, counts, -1.0)
        exclusive = program.add_rows(np.full(len(alone), -math.inf), alone, len(alone))
        links = program.add_rows(-math.inf, 1.0, len(split.links))
        self.rows = time, memory, exclusive, links
        self.budget = np.zeros(0, np.int64)
        if math.isfinite(split.budget):
            self.budget = program.add_rows(-math.inf, split.budget, 1)
            self._spend(counts, np.array(paid))
            if relaxed:
                program.fill(self.budget, program.add_columns([DEAREST]), -1.0)
        if relaxed:
            every = sum(price * count for price, count in zip(paid, most.tolist(), strict=True))
            highest = np.concatenate(Prices.highest(split, DEAREST, every).parts)
            program.fill(np.concatenate(self.rows), program.add_columns(highest), -1.0)

    def add(self, local: LocalProgram, variants: Collection[tuple[str, str]] | None) -> None:
        """Add a workflow's columns and rows. `variants`: the (operator, variant) pairs to choose from; None: all."""
        program, own, offers = self._program, local.program, local.offers
        rows, columns, values = (np.concatenate(part) for part in zip(*own.entries, strict=True))
        first = len(program.row_low)
        program.row_low += own.row_low
        program.row_high += own.row_high
        rented = np.full(own.columns, -1)  # column -> its row among the offers
        rented[offers.column] = np.arange(len(offers.column))
        kept = np.flatnonzero(rented < 0)
        placed = np.full(own.columns, -1)
        cost, most, whole = np.concatenate(own.cost), np.concatenate(own.high), np.concatenate(own.integer)
        if variants is not None:
            closed = [choice not in variants for choice in local.kinds.choices]
            most[local.joint_lp.chosen[closed]] = 0.0
        placed[kept] = program.add_columns(self._weight * cost[kept], most[kept], integer=True)
        program.integer[-1] = whole[kept]
        self._spend(placed[kept], self._weight * cost[kept])
        left_out = self._add_left_out(local, first)
        mine = rented[columns] < 0
        program.fill(rows[mine] + first, placed[columns[mine]], values[mine])
        offered = self._add_offers(local)
        self._fill_offers(rows[~mine] + first, rented[columns[~mine]], values[~mine], offered)
        *_, exclusive, links = self.rows
        for column, pool in local.surcharged:
            program.fill(exclusive[[pool]], placed[[column]], self._weight)
        for link, used, shares in local.common_links:
            paid = rented[used] < 0
            program.fill(np.full(paid.sum(), links[link]), placed[used[paid]], self._weight * shares[paid])
            row = np.full(np.count_nonzero(~paid), links[link])
            self._fill_offers(row, rented[used[~paid]], self._weight * shares[~paid], offered)
        self._parts.append(_Part(local, placed, offered, left_out))

    def _spend(self, columns: Indices, costs: Floats) -> None:
        """Count what these columns cost to the budget, if there is one."""
        if self.budget.size:
            program_rows = np.repeat(self.budget, len(columns))
            self._program.fill(program_rows, columns, costs)

    def _add_left_out(self, local: LocalProgram, first: int) -> Indices:
        """Add the column that leaves a workflow out: with it, all of its rows, from `first` on, hold at zero."""
        worth = local.split.worths[local.number]
        if math.isinf(worth):
            return np.zeros(0, np.int64)
        program = self._program
        column = program.add_columns([self._weight * worth], 1.0, integer=True)
        low, high = (np.array(own[first:], float) for own in (program.row_low, program.row_high))
        least = np.where(low > 0.0, low, np.where(high < 0.0, high, 0.0))  # what a row needs if all else is 0
        rows = np.flatnonzero(least)
        program.fill(rows + first, np.repeat(column, len(rows)), least[rows])
        return column

    def _add_offers(self, local: LocalProgram) -> Indices:
        """Add a column for each offer; returns them by row and place of the offers, -1 where there is none."""
        offers = local.offers
        runs = np.isfinite(offers.time)
        found = np.full(runs.shape, -1)
        found[runs] = self._program.add_columns(np.zeros(int(runs.sum())), 1.0)
        time, memory, *_ = self.rows
        self._program.fill(time[offers.pool[runs]], found[runs], self._weight * offers.time[runs])
        self._program.fill(memory[offers.pool[runs]], found[runs], self._weight * offers.memory[runs])
        if not self._relaxed:
            self._add_first_workers(offers.pool[runs], found[runs], offers.time[runs])
        return found

    def _add_first_workers(self, pools: Indices, columns: Indices, time: Floats) -> None:
        """Rows by which a pool that serves anything has a worker, for operators that take next to no time."""
        short = np.flatnonzero(time < LITTLE)
        rows = self._program.add_rows(-math.inf, 0.0, len(short))
        self._program.fill(rows, columns[short], 1.0)
        self._program.fill(rows, self._counts[pools[short]], -1.0)

    def _fill_offers(self, rows: Indices, of: Indices, values: Floats, offered: Indices) -> None:
        """Entries of rented columns, for every offer of theirs."""
        for column in offered[of].T:
            there = column >= 0
            self._program.fill(rows[there], column[there], values[there])

    def plans(self, limits: SolveLimits) -> tuple[list[LocalPlan] | None, float]:
        """The plans at the best whole point found, and the bound on all points."""
        answer = self._program.solve(limits)
        if answer.values is None:
            return None, answer.bound
        served = [part for part in self._parts if answer.values[part.left_out].sum() < 0.5]
        return [part.plan(answer.values) for part in served], answer.bound

    def relaxation(self) -> Relaxation:
        """The optimum without integrality."""
        model = self._program.model(relaxed=True)
        run(model)
        solution = model.getSolution()
        duals, values = np.maximum(-np.array(solution.row_dual), 0.0), np.array(solution.col_value)
        variants = []
        for part in self._parts:
            chosen = values[part.placed[part.local.joint_lp.chosen]]
            choices = part.local.kinds.choices
            variants.append({choices[choice] for choice in np.flatnonzero(chosen > LITTLE).tolist()})
        return Relaxation(Prices.of_duals(duals, self.rows, self.budget), variants)
