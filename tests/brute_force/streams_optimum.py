"""The cheapest plan where requests come in whole streams, worker by worker: shares no code with the solver.

Each worker of the fleet has a binary for each variant that it holds, and a whole number of streams for each operator,
variant and rate; of operators that answer other requests, any part of them. All are once on the fleet as it is, and
once after each loss, with the same models held.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

from jellybean_solver import Operator, Pool, Problem, Variant
from tests.brute_force.mixture_optimum import Way, _request_s, groups

Served = tuple[str, str, float]  # operator, variant, requests per second if all streams came
Worker = tuple[str, int]  # pool, number


def best(problem: Problem, streams: int, others: frozenset[str] = frozenset()) -> float | None:
    """USD per hour with a penalty; None if no plan is feasible. `others`: operators of requests without streams."""
    slo = problem.slo
    values = []
    for ways in groups(problem, mixes=slo.mean_accuracy is not None):
        if slo.survives and slo.penalty_usd_per_h is not None:
            values.append(_Program(problem, ways, streams, others, is_hard=True).best())
        values.append(_Program(problem, ways, streams, others, is_hard=False).best())
    return min((value for value in values if value is not None), default=None)


@dataclass
class _Program:
    problem: Problem
    ways: list[Way]
    streams: int
    others: frozenset[str]
    is_hard: bool  # the soft mean is met

    def best(self) -> float | None:
        problem = self.problem
        self.cost: list[float] = []
        self.most: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        workers = [(pool.name, number) for pool in problem.pools for number in range(pool.count)]
        pools = {pool.name: pool for pool in problem.pools}
        self.used = {one: self._column(self._price(pools[one[0]]), 1.0, whole=True) for one in workers}
        for one, after in itertools.pairwise(workers):
            if one[0] == after[0]:
                self.rows.append(({self.used[after]: 1.0, self.used[one]: -1.0}, -math.inf, 0.0))
        self.held = {
            (one, operator.name, variant.name): self._column(0.0, 1.0, whole=True)
            for one in workers
            for operator in problem.operators
            for variant in operator.variants
            if _runs(problem, operator, variant, pools[one[0]])
        }
        for one in workers:
            self._hold(one, pools[one[0]])
        slo = problem.slo
        is_soft = slo.penalty_usd_per_h is not None and not self.is_hard
        self.lacks = self._column(slo.penalty_usd_per_h or 0.0, 100.0, whole=False) if is_soft else None
        first = self._flow(pools, "", None)
        for kind, lost in self._losses(workers):
            self._flow(pools, kind, lost)
        if self.lacks is not None and slo.survives and slo.mean_accuracy is not None:
            row = {column: way.accuracy / self.streams for column, way in zip(first, self.ways, strict=True)}
            self.rows.append((row | {self.lacks: 1.0}, -math.inf, slo.mean_accuracy + 1e-9))
        return self._solved()

    def _losses(self, workers: list[Worker]) -> Iterator[tuple[str, object]]:
        problem = self.problem
        kinds = {kind.value for kind in problem.slo.survives}
        spot = {pool.name for pool in problem.pools if pool.terms.value == "spot"}
        if kinds & {"worker", "spot worker"}:
            yield from (("worker", one) for one in workers if "worker" in kinds or one[0] in spot)
        if "site" in kinds:
            yield from (("site", tier) for tier in problem.tiers if tier not in {s.tier for s in problem.sources})
        if "link" in kinds:
            yield from (("link", (link.upstream_tier, link.downstream_tier)) for link in problem.links)

    def _price(self, pool: Pool) -> float:
        return pool.price_usd_per_h * self.problem.sites.get(pool.tier, 1)

    def _column(self, cost: float, most: float, *, whole: bool) -> int:
        self.cost.append(cost)
        self.most.append(most)
        self.whole.append(whole)
        return len(self.cost) - 1

    def _hold(self, worker: Worker, pool: Pool) -> None:
        problem, memory = self.problem, dict[int, float]()
        for operator in problem.operators:
            row = {}
            for variant in operator.variants:
                if (column := self.held.get((worker, operator.name, variant.name))) is not None:
                    row[column] = 1.0
                    memory[column] = variant.memory_bytes.get(pool.name, 0.0)
            self.rows.append((row | {self.used[worker]: -1.0}, -math.inf, 0.0))
        if pool.memory_bytes is not None:
            self.rows.append((memory, -math.inf, pool.memory_bytes * (1 + 1e-9)))
        if pool.sharing.value == "exclusive":
            self.rows.append((dict.fromkeys(memory, 1.0), -math.inf, 1.0))

    def _flow(self, pools: dict[str, Pool], kind: str, lost: object) -> list[int]:
        """All streams, with everything there or after a loss; the columns of the ways, in streams."""
        problem, n = self.problem, float(self.streams)
        taken = [self._column(0.0 if kind else way.usd_per_h / n, n, whole=not self.others) for way in self.ways]
        self._keep_whole(taken)
        self.rows.append((dict.fromkeys(taken, 1.0), n, n))
        for column, way in zip(taken, self.ways, strict=True):
            crossed = {tuple(pair) for pair in way.pairs}
            if (kind == "site" and lost in way.tiers.values()) or (kind == "link" and lost in crossed):
                self.rows.append(({column: 1.0}, 0.0, 0.0))
        load: dict[Worker, dict[int, float]] = {}
        meet: dict[tuple[Served, str], dict[int, float]] = {}
        for column, way in zip(taken, self.ways, strict=True):
            for name, variant in way.selection.items():
                key = (name, variant, way.rates[name]), way.tiers[name]
                meet.setdefault(key, {})[column] = -1.0
        for ((name, chosen, rate), tier), row in meet.items():
            operator = next(one for one in problem.operators if one.name == name)
            variant = next(one for one in operator.variants if one.name == chosen)
            for worker, own_name, own in self.held:
                if (
                    (own_name, own) == (name, chosen)
                    and pools[worker[0]].tier == tier
                    and ("worker", worker)
                    != (
                        kind,
                        lost,
                    )
                ):
                    column = self._column(0.0, n, whole=name not in self.others)
                    row[column] = 1.0
                    self.rows.append(({column: 1.0, self.held[worker, name, chosen]: -n}, -math.inf, 0.0))
                    each = rate / n / problem.sites.get(tier, 1)
                    seconds = _request_s(problem, name, variant, pools[worker[0]])
                    load.setdefault(worker, {})[column] = each * seconds / problem.utilisation
            self.rows.append((row, 0.0, 0.0))
        self.rows += [(row, -math.inf, 1.0 + 1e-9) for row in load.values()]
        self._links(taken)
        if (mean := problem.slo.mean_accuracy) is not None:
            row = {column: way.accuracy / n for column, way in zip(taken, self.ways, strict=True)}
            lacks = {} if self.lacks is None else {self.lacks: 1.0}
            self.rows.append((row | lacks, mean - 1e-9, math.inf))
        return taken

    def _keep_whole(self, taken: list[int]) -> None:
        """Ways that differ for other requests only have a whole number of streams together."""
        alike: dict[tuple[tuple[str, str, str], ...], dict[int, float]] = {}
        for column, way in zip(taken, self.ways, strict=True):
            names = sorted(way.selection.keys() - self.others)
            key = tuple((name, way.selection[name], way.tiers[name]) for name in names)
            alike.setdefault(key, {})[column] = 1.0
        for row in alike.values() if self.others else ():
            self.rows.append((row | {self._column(0.0, float(self.streams), whole=True): -1.0}, 0.0, 0.0))

    def _links(self, taken: list[int]) -> None:
        for link in self.problem.links:
            if link.bandwidth_bytes_per_s is not None:
                pair = link.upstream_tier, link.downstream_tier
                most = link.bandwidth_bytes_per_s * self.problem.sites.get(pair[0], 1) * self.streams
                sent = {column: way.sent[pair] / most for column, way in zip(taken, self.ways, strict=True)}
                self.rows.append((sent, -math.inf, 1.0 + 1e-9))

    def _solved(self) -> float | None:
        at = [(number, column, value) for number, (row, _, _) in enumerate(self.rows) for column, value in row.items()]
        numbers, columns, values = zip(*at, strict=True)
        matrix = coo_matrix((values, (numbers, columns)), shape=(len(self.rows), len(self.cost))).tocsr()
        for presolve in (True, False):  # HiGHS' presolve calls some feasible programs infeasible
            answer = milp(
                np.array(self.cost),
                constraints=LinearConstraint(matrix, [low for _, low, _ in self.rows], [h for _, _, h in self.rows]),
                bounds=(np.zeros(len(self.cost)), np.array(self.most)),
                integrality=np.array([int(one) for one in self.whole]),
                options={"mip_rel_gap": 0.0, "presolve": presolve},
            )
            if answer.success:
                return float(answer.fun)
        return None


def _runs(problem: Problem, operator: Operator, variant: Variant, pool: Pool) -> bool:
    return 1 in variant.service.get(pool.name, {}) and (operator.tiers is None or pool.tier in operator.tiers)
