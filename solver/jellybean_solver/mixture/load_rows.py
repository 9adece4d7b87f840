"""Columns and rows of the program of ways that price the models which workers must load, given a running plan.

Where the workers of a pool are counted by exactly what they hold, the cheapest matching of workers is a transport
problem within the program, g and h being sets of instances:

    k[g, h]  workers that hold h and continue ones that held g: they load what is in h and not in g
    f[h]     workers that hold h and start empty
             f[h] + sum_g k[g, h] >= n[h];  sum_h k[g, h] <= running workers that hold g

For given whole n its optimum is whole, so k and f need not be integer. Elsewhere a lower bound takes its place: an
instance is loaded by at least as many workers as its requests need beyond those that hold it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.highs_program import Indices, Program
from jellybean_solver.mixture.flow_rows import Count, FlowRows, Workers
from jellybean_solver.mixture.seats import Held
from jellybean_solver.mixture.ways import Instance


class LoadRows:
    """The load costs of one program. `columns`: those that stand for them, in USD per hour of the horizon."""

    def __init__(self, program: Program, running: RunningPlan, workers: Workers) -> None:
        self.program, self.running, self.workers = program, running, workers
        self.columns: list[int] = []

    def add(self, flows: Iterable[FlowRows], matched: Iterable[str]) -> None:
        """Price the loads of every pool: of those in `matched` by matching workers, of others by a lower bound."""
        by_pool: dict[str, dict[Count, int]] = {}
        for (pool, held), column in self.workers.counts.items():
            by_pool.setdefault(pool, {})[pool, held] = column
        exact = frozenset(matched)
        flows = tuple(flows)
        for pool, counts in by_pool.items():
            prices = self._prices(pool, counts)
            if any(prices.values()):
                if pool in exact:
                    self._match(pool, counts, prices)
                else:
                    self._least(pool, flows, prices)

    def _prices(self, pool: str, counts: Iterable[Count]) -> Mapping[Instance, float]:
        """Instance -> USD per hour of the horizon for loading it on one worker of the pool."""
        instances = dict.fromkeys(one for _, held in counts for one in held)
        return {one: self.running.load_usd_per_h(*one, pool) for one in instances}

    def _match(self, pool: str, counts: Mapping[Count, int], prices: Mapping[Instance, float]) -> None:
        before = self.running.holding_sets(prices, pool)
        rows = self.program.add_rows(-math.inf, np.array([*before.values()], float), len(before))
        most = dict(zip(before, rows.tolist(), strict=True))
        for (_, held), count in counts.items():
            cost = _cost(held, prices)
            if cost == 0:
                continue
            saved = {one: _cost(one.intersection(held), prices) for one in before}
            useful = [one for one in before if saved[one] > 0]
            columns = self._add([cost, *(cost - saved[one] for one in useful)])
            self.program.row(0.0, math.inf, [count, *columns], [-1.0] + [1.0] * len(columns))
            self.program.fill([most[one] for one in useful], columns[1:], 1.0)

    def _least(self, pool: str, flows: Iterable[FlowRows], prices: Mapping[Instance, float]) -> None:
        before = self.running.holding_sets(prices, pool)
        for one in (one for one, price in prices.items() if price > 0):
            loads = self._add([prices[one]], integer=True)[0]
            holding = float(sum(count for held, count in before.items() if one in held))
            for flow in flows:
                served = [column for (task, at, _), column in flow.served.items() if (task[:2], at) == (one, pool)]
                for workers in (1.0, self.workers.busy[one, pool]) if served else ():
                    self.program.row(-math.inf, holding, [loads, *served], [-1.0] + [workers] * len(served))

    def _add(self, costs: list[float], *, integer: bool = False) -> Indices:
        columns = self.program.add_columns(costs, integer=integer)
        self.columns += columns.tolist()
        return columns


def _cost(held: Held | frozenset[Instance], prices: Mapping[Instance, float]) -> float:
    return sum(prices[one] for one in held)
