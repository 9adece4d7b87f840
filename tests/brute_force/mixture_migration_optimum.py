"""Re-planning of mixtures, worker by worker: an oracle that shares no code with the solver's way.

A binary column for every running worker and every set of variants that it may hold next, and one count for workers that
start empty, beside the program over everything of mixture_optimum.py. `least_migration` is SciPy's assignment.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linear_sum_assignment

from jellybean_solver import Plan, PlannedWorker, Problem
from tests.brute_force.migration_optimum import Model, Prices, key, replica
from tests.brute_force.mixture_optimum import Held, Program, Way, all_sets, cases, groups


def cheapest(problem: Problem, before: Plan, prices: Prices) -> float | None:
    """The least USD over the horizon with the migration and the penalty; None if no plan meets the targets."""
    values = []
    for case in cases(problem):
        for ways in groups(case, mixes=problem.slo.mean_accuracy is not None):
            value = _Moving(case, ways, before, prices).best(most_accurate=False)
            if value is not None:
                values.append(value * prices.horizon_h)
    return min(values, default=None)


class _Moving(Program):
    def __init__(self, problem: Problem, ways: list[Way], before: Plan, prices: Prices) -> None:
        super().__init__(problem, ways, all_sets)
        self.prices = prices
        for pool in problem.pools:
            counts = {held: column for (name, held), column in self.counts.items() if name == pool.name}
            there = [one for one in before.workers if (one.pool, one.tier) == (pool.name, pool.tier)]
            begun: dict[Held, list[int]] = {held: [] for held in counts}
            for had in (_models(before, worker) for worker in there):
                taken = {held: self._load(held, had, pool.name, pool.tier, 1.0, whole=True) for held in counts}
                self.rows.append((dict.fromkeys(taken.values(), 1.0), -math.inf, 1.0))
                for held, column in taken.items():
                    begun[held].append(column)
            for held, count in counts.items():
                empty = self._load(held, frozenset(), pool.name, pool.tier, float(pool.count), whole=True)
                self.rows.append((dict.fromkeys([*begun[held], empty], 1.0) | {count: -1.0}, 0.0, 0.0))

    def _load(self, held: Held, had: frozenset[Model], pool: str, tier: str, most: float, *, whole: bool) -> int:
        """A column for workers with `had` that go on with `held`."""
        chosen = {o.name: one for o, one in zip(self.problem.operators, held, strict=True) if one is not None}
        usd = sum(
            replica(self.problem, self.prices, chosen, name, pool, tier)
            for name in chosen
            if key(self.problem, chosen, name) not in had
        )
        column = self.column(usd / self.prices.horizon_h, most, whole=whole)
        self.unlimited.add(column)
        return column


def least_migration(problem: Problem, before: Plan, after: Plan, prices: Prices) -> float:
    """USD of what the workers of `after` must load, over all matchings of single workers, by pool."""
    total = 0.0
    for pool in problem.pools:
        old = [one for one in before.workers if (one.pool, one.tier) == (pool.name, pool.tier)]
        new = [one for one in after.workers if one.pool == pool.name]
        if not new:
            continue
        loads = np.zeros((len(new), len(old) + len(new)))  # each may start empty
        for row, worker in enumerate(new):
            for column in range(loads.shape[1]):
                had = _models(before, old[column]) if column < len(old) else frozenset()
                loads[row, column] = sum(
                    replica(problem, prices, {name: variant}, name, pool.name, pool.tier)
                    for name, variant, _ in _models(after, worker) - had
                )
        total += float(loads[linear_sum_assignment(loads)].sum())
    return total


def _models(plan: Plan, worker: PlannedWorker) -> frozenset[Model]:
    """What a worker of a plan holds."""
    found = []
    for name in worker.rates_per_s:
        operator = next(one for one in plan.operators if one.name == name)
        chosen = worker.variants.get(name, operator.variant)
        model = next(one.model for one in (operator, *operator.others) if one.variant == chosen)
        found.append((name, chosen, model.sha256 if model else None))
    return frozenset(found)
