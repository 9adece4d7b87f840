"""Plans that keep a p99 latency, found by forbidding what makes others late: for problems that are solved quickly.

A late plan's slowest way through the workflow is a list of things of which at least one has to be otherwise: a variant
on a pool, a link between two tiers, two operators of one request that wait for each other on one worker, a queue. So
the cheapest plan without each of them is looked at in turn, those of the fastest late plan first, and of none that
costs as much as the best that is in time. Whatever the programs with deadlines leave out (memory, who shares a worker)
counts here, as each of these plans is a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.deadline.capacity_margin import Room, with_headroom
from jellybean_solver.demand.demand import Crossings, EdgeKey, Network, Tiers
from jellybean_solver.latency.estimate import mean_waits_s, unqueued_s
from jellybean_solver.latency.stations import Stations
from jellybean_solver.model.critical_path import completion_times, critical_input
from jellybean_solver.model.deadline_shares import deadline_share
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Edge, Problem, Sharing
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock

NODES, FEWER = 60, 8  # plans looked at; where there is one that keeps the deadline already
LESS = 0.8  # of a pool's load, where requests wait
WAITS = 0.1  # a share of the way: shorter waits are no reason

Look = Callable[
    [Network, Room], tuple[Plan, float | None] | None
]  # its cheapest plan, and how slow it is if it is late
Place = tuple[str, str, str]  # operator, variant, pool


@dataclass(frozen=True, slots=True)
class Without:
    """What a plan must do without. `shares`: of the cap on utilisation, by pool."""

    places: frozenset[Place] = frozenset()
    crossings: frozenset[tuple[EdgeKey, Tiers]] = frozenset()
    apart: frozenset[frozenset[str]] = frozenset()
    shares: frozenset[tuple[str, float]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Open:
    """To be looked at: no plan without it costs less than `cost`; `slowness`: of the plan that it comes from."""

    cost: float
    slowness: float
    without: Without


def look_without(problem: Problem, first: Plan, value: Callable[[], float], look: Look, clock: Clock) -> None:
    """Give `look` one problem after the other, as long as none dearer than `value` is by then. `first` is late."""
    before = first.cost.total_usd_per_h
    waiting = [_Open(before, math.inf, without) for without in _otherwise(problem, first, Without())]
    seen = {one.without for one in waiting}
    looked = 0
    while waiting and looked < (NODES if math.isinf(value()) else FEWER) and clock.left() != 0.0:
        node = min(waiting, key=lambda one: (one.slowness, one.cost))
        waiting.remove(node)
        if node.cost >= value() * (1 - VALUE_TOLERANCE):
            continue
        looked += 1
        found = look(*_restricted(problem, node.without))
        if found is None:
            continue
        plan, slowness = found
        if slowness is None:
            continue
        for without in _otherwise(problem, plan, node.without):
            if without not in seen:
                seen.add(without)
                waiting.append(_Open(max(node.cost, plan.cost.total_usd_per_h), slowness, without))


def _restricted(problem: Problem, without: Without) -> tuple[Network, Room]:
    room = Room(dict(without.shares))
    return Network(with_headroom(_less(problem, without), room), _crossings(problem, without), without.apart), room


def _less(problem: Problem, without: Without) -> Problem:
    operators = []
    for operator in problem.operators:
        variants = tuple(
            replace(
                variant,
                service={
                    pool: times
                    for pool, times in variant.service.items()
                    if (operator.name, variant.name, pool) not in without.places
                },
            )
            for variant in operator.variants
        )
        operators.append(replace(operator, variants=variants))
    return replace(problem, operators=tuple(operators))


def _crossings(problem: Problem, without: Without) -> Crossings:
    every = {(up, down) for up in problem.tiers for down in problem.tiers}
    closed: dict[EdgeKey, set[Tiers]] = {}
    for key, tiers in without.crossings:
        closed.setdefault(key, set()).add(tiers)
    return {key: frozenset(every - gone) for key, gone in closed.items()}


def _otherwise(problem: Problem, plan: Plan, without: Without) -> Iterator[Without]:
    """What may be otherwise on the slowest way of a late plan, one at a time."""
    way = _Way(problem, plan)
    for name, worker, wait_s in way.visited:
        pool = plan.worker_by_name[worker].pool
        yield replace(without, places=without.places | {(name, plan.selection[name], pool)})
        if problem.pool_by_name[pool].sharing is Sharing.SHARED:
            for other in way.beside(name, worker):
                yield replace(without, apart=without.apart | {frozenset((name, other))})
        if wait_s > WAITS * way.takes_s:
            shares = dict(without.shares)
            shares[pool] = LESS * min(shares.get(pool, 1.0), plan.worker_by_name[worker].load / problem.utilisation)
            yield replace(without, shares=frozenset((pool, share) for pool, share in shares.items()))
    for crossing in way.crossed:
        yield replace(without, crossings=without.crossings | {crossing})


class _Way:
    """The slowest way through a plan's workflow, operator by operator and link by link, mean waits included.

    `visited`: operator, worker, seconds of waiting; `crossed`: edges between tiers; `takes_s`: in all.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.plan, self.stations = plan, Stations(plan)
        self.wait_s = mean_waits_s(plan)
        self.above: dict[str, frozenset[str]] = {}
        self.visited: list[tuple[str, str, float]] = []
        self.crossed: list[tuple[EdgeKey, Tiers]] = []
        self.takes_s = 0.0
        self._find(problem)

    def beside(self, name: str, worker: str) -> Iterator[str]:
        """Operators on the worker that are neither above nor below: a request's runs wait for each other there."""
        for other in self.plan.worker_by_name[worker].rates_per_s:
            if other != name and other not in self.above[name] and name not in self.above[other]:
                yield other

    def _find(self, problem: Problem) -> None:
        for operator in self.plan.operators:
            own = [edge.upstream for edge in operator.inputs if edge.upstream in self.above]
            self.above[operator.name] = frozenset(own).union(*(self.above[name] for name in own))
        slowest: dict[str, tuple[float, str]] = {}
        for operator in self.plan.operators:
            workers = (worker.name for worker in self.plan.workers if operator.name in worker.rates_per_s)
            slowest[operator.name] = max((self._takes_s(operator.name, worker), worker) for worker in workers)
        completed_s = completion_times(self.plan.operators, lambda name: slowest[name][0], self._slowest_link_s)
        ends = [name for name in slowest if deadline_share(problem, name) is not None]
        last = max(ends, key=lambda name: completed_s[name] / (deadline_share(problem, name) or 1.0))
        self.takes_s = completed_s[last]
        while last in slowest:
            worker = slowest[last][1]
            self.visited.append((last, worker, self.wait_s[worker]))
            edge = critical_input(self.plan.operator_by_name[last], completed_s, self._slowest_link_s)
            if edge is None:
                break
            link_s, tiers = self._slowest_link(edge)
            if link_s > 0:
                self.crossed.append(((edge.upstream, edge.downstream), tiers))
            last = edge.upstream

    def _slowest_link(self, edge: Edge) -> tuple[float, Tiers]:
        """Seconds and tiers of the slowest crossing that the plan's routes take with an edge's data."""
        size, found = self.stations.sent_bytes(edge), (-1.0, ("", ""))
        for tiers in self.stations.table.crossings(edge)[0]:
            link_s = self.stations.link_s(*tiers, size)
            if link_s >= found[0]:
                found = link_s, tiers
        return found

    def _slowest_link_s(self, edge: Edge) -> float:
        return self._slowest_link(edge)[0]

    def _takes_s(self, name: str, worker: str) -> float:
        own_s = self._own_s(name, worker)
        return own_s + sum(self._own_s(other, worker) for other in self.beside(name, worker)) + self.wait_s[worker]

    def _own_s(self, name: str, worker: str) -> float:
        operator, pool = self.plan.operator_by_name[name], self.plan.worker_by_name[worker].pool
        return unqueued_s(operator.service[pool], operator.batch[pool], self.stations.jobs(name))
