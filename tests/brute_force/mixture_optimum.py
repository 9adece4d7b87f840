"""The cheapest or most accurate mixture of selections, by one program over everything: shares no code with the solver.

A share of the requests for every selection with every assignment of its operators to tiers, and a whole number of
workers for every choice of one variant, or none, of each operator that a worker of a pool can hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

from jellybean_solver.model.problem import Operator, Pool, Problem, Variant
from tests.brute_force import optimum
from tests.brute_force import rates as reference_rates

GIB = 1024.0**3
Held = tuple[str | None, ...]  # a variant, or none, of each operator


@dataclass(frozen=True)
class Way:
    """A selection, a tier for each operator, and what follows if all requests take this way."""

    selection: dict[str, str]
    tiers: dict[str, str]
    accuracy: float
    usd_per_h: float
    sent: dict[tuple[str, str], float]
    rates: dict[str, float]


def ways(problem: Problem) -> Iterator[Way]:
    """All whose accuracy is known and not below the least one, and whose data can flow."""
    names = [operator.name for operator in problem.operators]
    for selection in optimum.selections(problem):
        accuracy = optimum.accuracy(problem, selection)
        if accuracy is None or (problem.slo.accuracy is not None and accuracy < problem.slo.accuracy - 1e-9):
            continue
        rates = reference_rates.rates(problem, selection)
        for row in itertools.product(problem.tiers, repeat=len(names)):
            tiers = dict(zip(names, row, strict=True))
            found = _traffic(problem, selection, tiers, rates)
            if found is not None:
                yield Way(selection, tiers, accuracy, *found, rates)


def _traffic(
    problem: Problem, selection: dict[str, str], tiers: dict[str, str], rates: dict[str, float]
) -> tuple[float, dict[tuple[str, str], float]] | None:
    """USD per hour and bytes per second by link; None when data cannot flow so."""
    sources = {source.name: source for source in problem.sources}
    links = {(link.upstream_tier, link.downstream_tier): link for link in problem.links}
    usd, sent = 0.0, dict.fromkeys(links, 0.0)
    for operator in problem.operators:
        if operator.tiers is not None and tiers[operator.name] not in operator.tiers:
            return None
        for edge in operator.inputs:
            source = sources.get(edge.upstream)
            start, end = source.tier if source else tiers[edge.upstream], tiers[operator.name]
            if edge.tiers is not None and not {start, end} <= set(edge.tiers):
                return None
            if start == end:
                continue
            upward = problem.tiers.index(start) < problem.tiers.index(end)
            if not upward or (start, end) not in links:
                return None
            size = (
                source.message_bytes if source else _of(problem, edge.upstream, selection).message_bytes[operator.name]
            )
            bytes_per_s = rates[edge.upstream] * reference_rates.rows(problem, edge, selection) * size
            usd += bytes_per_s * 3600.0 / GIB * links[start, end].price_usd_per_gib
            sent[start, end] += bytes_per_s
    return usd, sent


def _of(problem: Problem, name: str, selection: dict[str, str]) -> Variant:
    operator = next(o for o in problem.operators if o.name == name)
    return next(v for v in operator.variants if v.name == selection[name])


def _request_s(problem: Problem, name: str, variant: Variant, pool: Pool) -> float:
    """At the smallest batch size that no other one undercuts by more than 2 %; alone where rows fan out or gather."""
    times = variant.service[pool.name]
    kinds = [(e, e.kind.value) for o in problem.operators for e in o.inputs]
    alone = any((e.upstream == name and k == "fan_out") or (e.downstream == name and k == "gather") for e, k in kinds)
    if alone:
        return times[1].load_s
    least = min(time.load_s / size for size, time in times.items())
    size = min(size for size, time in times.items() if time.load_s / size * 0.98 <= least)
    return times[size].load_s / size


def best(problem: Problem, *, most_accurate: bool) -> float | None:
    """USD per hour, or the mean accuracy in percent; None if no mixture is feasible."""
    program = _Program(problem, list(ways(problem)))
    return program.best(most_accurate=most_accurate) if program.ways else None


class _Program:
    """Columns are (cost, most, whole); rows are (column -> value, least, most)."""

    def __init__(self, problem: Problem, all_ways: list[Way]) -> None:
        self.problem, self.ways = problem, all_ways
        self.columns: list[tuple[float, float, bool]] = [(way.usd_per_h, 1.0, False) for way in all_ways]
        self.rows: list[tuple[dict[int, float], float, float]] = [(dict.fromkeys(range(len(all_ways)), 1.0), 1.0, 1.0)]
        self.served: dict[tuple[str, str, str], dict[int, float]] = {}  # operator, variant, tier -> columns
        for pool in problem.pools:
            self._pool(pool)
        self._meet()
        self._links()

    def best(self, *, most_accurate: bool) -> float | None:
        accuracies = {index: way.accuracy for index, way in enumerate(self.ways)}
        costs = {index: cost for index, (cost, _, _) in enumerate(self.columns) if cost}
        if self.problem.slo.mean_accuracy is not None:
            self.rows.append((accuracies, self.problem.slo.mean_accuracy - 1e-9, math.inf))
        if self.problem.slo.budget_usd_per_h is not None:
            self.rows.append((costs, -math.inf, self.problem.slo.budget_usd_per_h))
        goal = {index: -value for index, value in accuracies.items()} if most_accurate else costs
        return _solved(self.columns, self.rows, goal, sign=-1.0 if most_accurate else 1.0)

    def _pool(self, pool: Pool) -> None:
        sites = self.problem.sites.get(pool.tier, 1)
        counts: dict[int, float] = {}
        for held in _sets(self.problem, pool):
            count = self._column(pool.price_usd_per_h * sites, float(pool.count), whole=True)
            counts[count], load = 1.0, {count: -1.0}
            for operator, chosen in zip(self.problem.operators, held, strict=True):
                if chosen is not None:
                    column = self._column(0.0, math.inf, whole=False)
                    taken_s = _request_s(self.problem, operator.name, _variant(operator, chosen), pool)
                    load[column] = taken_s / self.problem.utilisation / sites
                    self.served.setdefault((operator.name, chosen, pool.tier), {})[column] = 1.0
                    most = max((way.rates[operator.name] for way in self.ways), default=0.0)
                    self.rows.append(({column: 1.0, count: -max(most, 1.0)}, -math.inf, 0.0))
            self.rows.append((load, -math.inf, 0.0))
        self.rows.append((counts, -math.inf, float(pool.count)))

    def _column(self, cost: float, most: float, *, whole: bool) -> int:
        self.columns.append((cost, most, whole))
        return len(self.columns) - 1

    def _meet(self) -> None:
        """What workers serve is what the ways bring; a variant that no worker of a tier can run is on no way."""
        for operator in self.problem.operators:
            for variant, tier in itertools.product(operator.variants, self.problem.tiers):
                row = dict(self.served.get((operator.name, variant.name, tier), {}))
                able = bool(row)
                for index, way in enumerate(self.ways):
                    if way.selection[operator.name] == variant.name and way.tiers[operator.name] == tier:
                        row[index] = -way.rates[operator.name]
                        if not able:
                            self.rows.append(({index: 1.0}, 0.0, 0.0))
                self.rows.append((row, 0.0, 0.0))

    def _links(self) -> None:
        for link in self.problem.links:
            if link.bandwidth_bytes_per_s is not None:
                pair = link.upstream_tier, link.downstream_tier
                all_sites = link.bandwidth_bytes_per_s * self.problem.sites.get(link.upstream_tier, 1)
                self.rows.append(({i: way.sent[pair] / all_sites for i, way in enumerate(self.ways)}, -math.inf, 1.0))


def _variant(operator: Operator, name: str) -> Variant:
    return next(v for v in operator.variants if v.name == name)


def _sets(problem: Problem, pool: Pool) -> Iterator[Held]:
    """What one worker of a pool may hold: of each operator one variant or none, within its memory."""
    able = [
        [None, *(v.name for v in operator.variants if 1 in v.service.get(pool.name, {}))]
        if operator.tiers is None or pool.tier in operator.tiers
        else [None]
        for operator in problem.operators
    ]
    for held in itertools.product(*able):
        chosen = [(o.name, one) for o, one in zip(problem.operators, held, strict=True) if one is not None]
        if not chosen or (pool.sharing.value == "exclusive" and len(chosen) > 1):
            continue
        needed = sum(_of(problem, name, {name: one}).memory_bytes.get(pool.name, 0.0) for name, one in chosen)
        if pool.memory_bytes is None or needed <= pool.memory_bytes * (1 + 1e-9):
            yield held


def _solved(
    columns: list[tuple[float, float, bool]],
    rows: list[tuple[dict[int, float], float, float]],
    goal: dict[int, float],
    sign: float,
) -> float | None:
    at = [(number, column, value) for number, (row, _, _) in enumerate(rows) for column, value in row.items()]
    numbers, indices, values = zip(*at, strict=True)
    matrix = coo_matrix((values, (numbers, indices)), shape=(len(rows), len(columns))).tocsr()
    cost = np.zeros(len(columns))
    for column, value in goal.items():
        cost[column] = value
    answer = milp(
        cost,
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        bounds=(np.zeros(len(columns)), np.array([most for _, most, _ in columns])),
        integrality=np.array([int(whole) for _, _, whole in columns]),
        options={"mip_rel_gap": 0.0},
    )
    return sign * float(answer.fun) if answer.success else None
