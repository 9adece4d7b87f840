"""The master program of the decomposition: one local plan for each workflow, within what they have in common.

Columns:
    x[j]   1 if local plan j is chosen; relaxed: fraction of it
    n[p]   workers paid in common shared pool p
    u[w]   1 if workflow w is not served, at what it is worth, or if it must be served at more than that costs
    o[r]   relaxed, if there are highest prices: what row r of the common capacity is exceeded by, at its highest price
Rows:
    sum_{j of w} x[j] + u[w] = 1;   sum_j time[j, p] x[j] <= n[p];   sum_j memory[j, p] x[j] <= n[p];
    sum_j count[j, p] x[j] <= number of workers of common exclusive pool p;   sum_j share[j, l] x[j] <= 1 per link;
    sum_j usd[j] x[j] + sum_p price[p] n[p] <= budget, if there is one.
The duals of the relaxed program are the prices at which new local plans are asked for (Dantzig and Wolfe 1960).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.local_plan import LocalPlan, Use
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import Floats, Indices, Program, SolveLimits, run

LITTLE = 1e-3  # fraction of a plan: less is not in a mixture
DEAREST_USD = 20.0  # for each USD beyond the budget: so the relaxed program has a point with any numbers of workers
_UNSERVED = 1e-6  # workflows, or workers: less is a rounding error


@dataclass(frozen=True)
class MasterPoint:
    """An optimum of the relaxed master. `unserved`: number of workflows for which capacity lacks though they must be.

    `over`: sum of what rows of the common capacity are exceeded by.
    """

    value: float
    prices: Prices
    unserved: float
    over: float

    @property
    def is_within(self) -> bool:
        """True if all workflows are served within the common capacity."""
        return self.unserved <= _UNSERVED and self.over <= _UNSERVED


class Master:
    """The master over some of the parts, each standing for `weight` alike ones. `dear`: USD per hour of not serving."""

    def __init__(self, split: Split, parts: Sequence[int], weight: float = 1.0) -> None:
        self.split, self.parts, self.weight = split, tuple(parts), weight
        self.plans: list[LocalPlan] = []
        self.dear = 0.0
        worths = split.worths[list(self.parts)]
        self._worths, self._must = worths, np.isinf(worths)
        self._place = {part: row for row, part in enumerate(self.parts)}

    def add(self, plans: Sequence[LocalPlan], dear: float) -> None:
        """Add local plans of these parts; not serving one costs at least `dear` from now on."""
        self.plans += plans
        self.dear = max(self.dear, dear)

    def relaxed(self, highest: Prices | None = None, counts: Sequence[int] | None = None) -> MasterPoint:
        """The optimum without integrality, and its prices. `counts`: workers of each common shared pool, if fixed.

        `highest`: at these prices capacity may be exceeded, so that none is higher (the boxes of Marsten, Hogan and
        Blankenship 1975): with few plans, prices would be extremes that no plan fits.
        """
        program, rows, unserved, budget = self._program(None, counts)
        over = np.zeros(0, np.int64)
        if highest is not None:
            every = np.concatenate(rows)
            over = program.add_columns(np.concatenate(highest.parts))
            program.fill(every, over, -1.0)
        model = program.model(relaxed=True)
        run(model)
        answer = program.answer(model, relaxed=True)
        if answer.values is None:
            raise AssertionError("workflows may stay unserved, so there is always a point")
        duals = np.maximum(-np.array(model.getSolution().row_dual), 0.0)
        prices = Prices.of_duals(duals, rows, budget)
        values = answer.values
        lacking = float(values[unserved[self._must]].sum())
        return MasterPoint(answer.value, prices, lacking, float(values[over].sum()))

    def mixture(self) -> list[set[tuple[str, str]]]:
        """Per part the (operator, variant) pairs of the plans that the relaxed optimum mixes."""
        program, *_ = self._program(None)
        values = program.solve(relaxed=True).values
        if values is None:
            raise AssertionError("workflows may stay unserved, so there is always a point")
        found: list[set[tuple[str, str]]] = [set() for _ in self.parts]
        for value, plan in zip(values.tolist(), self.plans, strict=False):
            own = found[self._place[plan.part]]
            if value > LITTLE or not own:
                own.update(plan.selection.items())
        return found

    def chosen(self, limits: SolveLimits, reserve: Floats) -> list[LocalPlan] | None:
        """A plan for every workflow that is served, by the integer program; None if one lacks that must be served.

        `reserve`: workers of each common shared pool beyond those that time and memory need.
        """
        program, _, unserved, _ = self._program(reserve)
        values = program.solve(limits).values
        if values is None or values[unserved[self._must]].sum() > _UNSERVED:
            return None
        picked: dict[int, tuple[float, LocalPlan]] = {}
        for value, plan in zip(values.tolist(), self.plans, strict=False):
            if value > picked.get(plan.part, (0.5, plan))[0]:
                picked[plan.part] = value, plan
        return [picked[part][1] for part in self.parts if part in picked]

    def _program(
        self, reserve: Floats | None, counts: Sequence[int] | None = None
    ) -> tuple[Program, tuple[Indices, ...], Indices, Indices]:
        """The program, its rows by kind of price, the columns u, and the row of a budget.

        `reserve`: None for the relaxed one.
        """
        split, program, whole = self.split, Program(), reserve is not None
        shared, alone = len(split.shared), len(split.exclusive)
        plans = program.add_columns([self.weight * plan.usd_per_h for plan in self.plans], 1.0, integer=whole)
        one = program.add_rows(1.0, 1.0, len(self.parts))
        program.fill(one[[self._place[plan.part] for plan in self.plans]], plans, 1.0)
        loss = np.where(self._must, self.dear, self._worths)
        unserved = program.add_columns(self.weight * loss, 1.0, integer=whole)
        program.fill(one, unserved, 1.0)
        price = [split.problem.unit_usd_per_h(pool) for pool in split.shared]
        paid = program.add_columns(price, [float(pool.count) for pool in split.shared], integer=whole)
        if counts is not None:
            program.low[-1][:] = counts
            program.high[-1][:] = counts
        spare = np.zeros(shared) if reserve is None else -reserve
        time, memory = (program.add_rows(np.full(shared, -math.inf), 0.0, shared) for _ in range(2))
        for rows in (time, memory):
            program.fill(rows, paid, -1.0)
            for row, left in zip(rows.tolist(), spare.tolist(), strict=True):
                program.row_high[row] = left
        count = program.add_rows(-math.inf, 0.0, alone)
        for row, pool in zip(count.tolist(), split.exclusive, strict=True):
            program.row_high[row] = float(pool.count)
        links = program.add_rows(-math.inf, 1.0, len(split.links))
        kinds = (time, memory, count, links)
        for rows, of in zip(kinds, ("time", "memory", "count", "links"), strict=True):
            self._fill(program, rows, plans, [getattr(plan, of) for plan in self.plans])
        budget = np.zeros(0, np.int64)
        if math.isfinite(split.budget):
            budget = program.add_rows(-math.inf, split.budget, 1)
            costs = np.concatenate([program.cost[0], np.asarray(price, float)])
            program.fill(np.repeat(budget, len(costs)), np.concatenate([plans, paid]), costs)
            if not whole:
                program.fill(budget, program.add_columns([DEAREST_USD]), -1.0)
        return program, kinds, unserved, budget

    def _fill(self, program: Program, rows: Indices, plans: Indices, uses: Sequence[Use]) -> None:
        sizes = [len(use.index) for use in uses]
        if sum(sizes):
            at = np.concatenate([use.index for use in uses])
            amounts = np.concatenate([use.amount for use in uses])
            program.fill(rows[at], np.repeat(plans, sizes), self.weight * amounts)
