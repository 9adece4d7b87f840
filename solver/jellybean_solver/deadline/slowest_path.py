"""The slowest path of requests through a plan, and how plans may be restricted so that it becomes faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.deadline.settings import DeadlineSettings
from jellybean_solver.demand.demand import EdgeKey, Tiers
from jellybean_solver.latency.estimate import mean_waits_s, unqueued_s
from jellybean_solver.latency.plan_arrivals import PlanArrivals
from jellybean_solver.model.critical_path import completion_times, critical_input
from jellybean_solver.model.flows import link_s, link_uses
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.model.workflow import Edge

_Change = tuple[float, Restriction]  # seconds of the path's time that the restriction may save


class SlowestPath:
    """Operators and links on the path with the longest mean time relative to its deadline, waits included.

    `stages`: operator, its slowest worker, mean wait there in seconds. `crossed`: edges between tiers, with their
    transfer time in seconds. Both run from the path's end to its start.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.arrivals = problem, plan, PlanArrivals(plan)
        self.wait_s = mean_waits_s(plan)
        self.ancestors = _ancestors(plan)
        self.stages: list[tuple[str, str, float]] = []
        self.crossed: list[tuple[EdgeKey, Tiers, float]] = []
        self._find()

    def restrictions(self, restriction: Restriction, slowness: float, settings: DeadlineSettings) -> list[Restriction]:
        """Restrictions added to `restriction`, each of which rules the plan out; the largest possible saving first.

        `slowness`: the plan's p99 latency as a multiple of the target; margins grow with it.
        """
        step = settings.margin_step
        if math.isfinite(slowness):
            step = min(step, max(settings.largest_step, 1.0 / slowness))
        changes = [*self._without_one_place(restriction), *self._with_margins(restriction, step, settings)]
        return [change for _, change in sorted(changes, key=lambda change: -change[0])]

    def _without_one_place(self, restriction: Restriction) -> Iterator[_Change]:
        for name, worker, _ in self.stages:
            pool = self.plan.worker_by_name[worker].pool
            place = (name, self.plan.operator_at(name, worker).variant, pool)
            yield self._run_s(name, worker), replace(restriction, places=restriction.places | {place})
            if (smaller := self._smaller_batch(name, worker)) is not None:
                size, saved_s = smaller
                yield saved_s, replace(restriction, batches=restriction.batches | {(place, size)})
            if self.problem.pool_by_name[pool].sharing is Sharing.SHARED:
                for other in self._parallel(name, worker):
                    pair = frozenset((name, other))
                    yield self._run_s(other, worker), replace(restriction, apart=restriction.apart | {pair})
        for key, tiers, crossing_s in self.crossed:
            yield crossing_s, replace(restriction, crossings=restriction.crossings | {(key, tiers)})

    def _with_margins(self, restriction: Restriction, step: float, settings: DeadlineSettings) -> Iterator[_Change]:
        waits_s: dict[str, float] = {}  # by pool
        for _, worker, wait_s in self.stages:
            pool = self.plan.worker_by_name[worker].pool
            waits_s[pool] = waits_s.get(pool, 0.0) + wait_s
        waiting = [pool for pool, wait_s in waits_s.items() if wait_s > 0]
        for pool in waiting:
            yield waits_s[pool], self._with_less_load(restriction, pool, {pool}, step)
        if len(self.problem.pools) > 1 and waiting:
            fullest = max(waiting, key=self._load)
            every = {pool.name for pool in self.problem.pools}
            yield sum(waits_s.values()), self._with_less_load(restriction, fullest, every, step)
        busiest = busiest_link(self.plan)
        if busiest > settings.busy_link:
            saved_s = math.inf if busiest > settings.full_link else sum(crossing_s for *_, crossing_s in self.crossed)
            yield saved_s, replace(restriction, links=settings.margin_step * min(restriction.links, busiest))

    def _with_less_load(self, restriction: Restriction, fullest: str, pools: set[str], step: float) -> Restriction:
        """Limit the utilisation of `pools` to `step` x the present utilisation of pool `fullest`."""
        shares = dict(restriction.pools)
        used = min(shares.get(fullest, 1.0), self._load(fullest) / self.problem.utilisation)
        shares |= {pool: min(shares.get(pool, 1.0), step * used) for pool in pools}
        return replace(restriction, pools=frozenset(shares.items()))

    def _load(self, pool: str) -> float:
        """Utilisation of a pool's busiest worker."""
        return max(worker.load for worker in self.plan.workers if worker.pool == pool)

    def _parallel(self, name: str, worker: str) -> Iterator[str]:
        """Other operators on the worker that are no ancestor or descendant: their runs for one request queue there."""
        for other in self.plan.worker_by_name[worker].rates_per_s:
            if other != name and other not in self.ancestors[name] and name not in self.ancestors[other]:
                yield other

    def _find(self) -> None:
        plan = self.plan
        slowest: dict[str, tuple[float, str]] = {}
        for operator in plan.operators:
            workers = (worker.name for worker in plan.workers if operator.name in worker.rates_per_s)
            slowest[operator.name] = max((self._stage_s(operator.name, worker), worker) for worker in workers)
        completed_s = completion_times(plan.operators, lambda name: slowest[name][0], self._slowest_link_s)
        ends = [name for name in slowest if self.problem.deadline_share(name) is not None]
        last = max(ends, key=lambda name: completed_s[name] / (self.problem.deadline_share(name) or 1.0))
        while last in slowest:
            worker = slowest[last][1]
            self.stages.append((last, worker, self.wait_s[worker]))
            edge = critical_input(plan.operator_by_name[last], completed_s, self._slowest_link_s)
            if edge is None:
                break
            crossing_s, tiers = self._slowest_link(edge)
            if crossing_s > 0:
                self.crossed.append(((edge.upstream, edge.downstream), tiers, crossing_s))
            last = edge.upstream

    def _slowest_link(self, edge: Edge) -> tuple[float, Tiers]:
        """Seconds and tiers of the slowest crossing on the plan's routes for an edge's data."""
        sent_bytes = self.arrivals.sent_bytes(edge)
        crossings = self.arrivals.table.crossings(edge)[0]
        return max((link_s(self.plan, tiers, sent_bytes), tiers) for tiers in crossings)

    def _slowest_link_s(self, edge: Edge) -> float:
        return self._slowest_link(edge)[0]

    def _stage_s(self, name: str, worker: str) -> float:
        parallel_s = sum(self._run_s(other, worker) for other in self._parallel(name, worker))
        return self._run_s(name, worker) + parallel_s + self.wait_s[worker]

    def _smaller_batch(self, name: str, worker: str) -> tuple[int, float] | None:
        """The next smaller batch size of an operator on a worker, and how much sooner its full run ends, in seconds."""
        operator, pool = self.plan.operator_at(name, worker), self.plan.worker_by_name[worker].pool
        times, batch = operator.service[pool], operator.batch[pool]
        size = max((size for size in times if size < batch), default=None)
        return None if size is None else (size, times[batch].mean_s - times[size].mean_s)

    def _run_s(self, name: str, worker: str) -> float:
        operator, pool = self.plan.operator_at(name, worker), self.plan.worker_by_name[worker].pool
        return unqueued_s(operator.service[pool], operator.batch[pool], self.arrivals.jobs(name))


def busiest_link(plan: Plan) -> float:
    """Highest utilisation of a link of limited bandwidth; 0 without one."""
    return max((use.use for use in link_uses(plan) if use.use is not None), default=0.0)


def _ancestors(plan: Plan) -> dict[str, frozenset[str]]:
    ancestors: dict[str, frozenset[str]] = {}
    for operator in plan.operators:
        inputs = [edge.upstream for edge in operator.inputs if edge.upstream in ancestors]
        ancestors[operator.name] = frozenset(inputs).union(*(ancestors[name] for name in inputs))
    return ancestors
