"""The cheapest plan of a fleet that keeps a p99 latency: one price of delay for all of it.

By Chernoff a plan's p99 is nearly a sum along its routes of what each operator adds where it runs
(`delay_linearisation.py`). That sum is linear, so a deadline on it goes into the fleet search's relaxation, whose
dual is the price of a second. What the sum leaves out, how routes and bursts meet, changes little from one plan to
the next: the closed form of each plan found (`estimate.py`) tells how much shorter or longer the next sum is to be.
Workers of a plan in time are then made whole once more, on whatever is no slower than what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from jellybean_solver.deadline.capacity_margin import Room, in_own_figures, with_headroom
from jellybean_solver.demand.demand import EdgeKey, Network, Tiers
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.joint_lp import Skeleton
from jellybean_solver.fleet.relaxation import Relaxation
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import Latency, latency
from jellybean_solver.latency.route_table import RouteTable
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem, Variant
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Outcome
from jellybean_solver.small.assignment import Assignment

TILT = 20.0  # theta x deadline where Chernoff's bound on a fleet's p99 is close to its least
PENALTY = 3.25  # minus the logarithm of what Chernoff's bound may be at p99
STEPS = 3  # sums tried
NEAR = 0.985  # of the next sum, after one within which a plan was in time
LEAST, MOST = 0.8, 0.995  # of a sum that was too long: the next
POWER = 1.5  # of how much too long a p99 was, by which the sum is cut: not all of it shrinks with the sum
LONGER = 1.04  # than a sum within which nothing was found: the next
LINKS = 0.97  # of a link's bandwidth: on a full one messages wait for ever
SHARE = 0.2  # of the time left, for making workers whole once more

Planned = Callable[[Network, Outcome[Assignment]], Plan | None]


def least_cost_in_time(problem: Problem, deadline_s: float, first: Plan, clock: Clock) -> float:
    """What no plan falls below that keeps the deadline though nothing waits; `first`: the cheapest plan without it."""
    pace = Pace(deadline_s - 2.0 * problem.hop_s)
    if pace.of_plan(problem, first) <= pace.left_s:
        return 0.0
    skeleton = Skeleton(Network(problem), problem.accuracy_target, {}, pace)
    if not skeleton.possible or pace.left_s <= 0:
        return math.inf
    relaxation = Relaxation(skeleton, clock)
    try:
        point = relaxation.solve(relaxation.everything())
    except OutOfTimeError:
        return 0.0
    return math.inf if point is None else point.bound


class PacedSearch:
    """The plans on the way, the best of which is `best`; `fastest_s`: the least p99 of all of them."""

    def __init__(self, problem: Problem, deadline_s: float, gap: float, clock: Clock, planned: Planned) -> None:
        self.problem, self.deadline_s, self.gap, self.clock, self.planned = problem, deadline_s, gap, clock, planned
        self.pace = Pace(deadline_s, TILT / deadline_s)
        self.best: Plan | None = None
        self.fastest_s = math.inf

    def run(self, first: Plan, bound: float) -> None:
        """From the cheapest plan, whose queues are too long, until a plan is near the bound or as cheap as it gets."""
        network, left_s = Network(with_headroom(self.problem, Room(links=LINKS))), self._first_left(first)
        target, budget_usd_per_h = self.problem.accuracy_target, self.problem.slo.budget_usd_per_h or math.inf
        search = FleetSearch(network, target, {}, SearchLimits(self.gap, self.clock), pace=self._paced(left_s))
        in_time, late = 0.0, math.inf  # the longest sum that was not too long, the shortest that was
        for _ in range(STEPS):
            if self.clock.left() == 0.0 or self._is_near(bound) or late - in_time < (1.0 - MOST) * late:
                return
            budget = min(self._value() * (1.0 - VALUE_TOLERANCE), budget_usd_per_h)
            plan = self._plan(network, search.under(left_s, SearchLimits(self.gap, self.clock, budget)).run())
            if plan is None:
                left_s = LONGER * left_s if math.isinf(late) else (left_s + late) / 2.0
                continue
            found = self._looked(plan)
            if found.meets(self.deadline_s):
                self._firm(plan)
                in_time = max(in_time, left_s)
                left_s = left_s / NEAR if math.isinf(late) else (left_s + late) / 2.0
            else:
                late = min(late, left_s, self.pace.of_plan(self.problem, plan))
                left_s = self._shorter(late, found)
                left_s = (in_time + late) / 2.0 if left_s <= in_time else left_s

    def _first_left(self, first: Plan) -> float:
        found = latency(first)
        if math.isfinite(found.p99_s):
            return self._shorter(self.pace.of_plan(self.problem, first), found)
        return self.deadline_s - PENALTY / self.pace.theta - 2.0 * self.problem.hop_s

    def _paced(self, left_s: float) -> Pace:
        return replace(self.pace, left_s=left_s)

    def _shorter(self, sum_s: float, found: Latency) -> float:
        part = math.pow(self.deadline_s / _slowest_s(found), POWER)
        return sum_s * min(MOST, max(LEAST, part))

    def _plan(self, network: Network, outcome: Outcome[Assignment]) -> Plan | None:
        plan = self.planned(network, outcome) if outcome.found is not None else None
        return in_own_figures(self.problem, plan) if plan is not None else None

    def _looked(self, plan: Plan) -> Latency:
        found = latency(plan)
        self.fastest_s = min(self.fastest_s, _slowest_s(found))
        if found.meets(self.deadline_s) and plan.cost.total_usd_per_h < self._value():
            self.best = plan
        return found

    def _firm(self, plan: Plan) -> None:
        """The same selection on workers no slower than the plan's: with whole ones chosen anew, it may be cheaper."""
        network, left_s = no_slower(self.problem, plan, self.pace), self.clock.left()
        end = math.inf if self.clock.now is None or left_s is None else self.clock.now() + SHARE * left_s
        budget = self._value() * (1.0 - VALUE_TOLERANCE)
        clock = Clock(self.clock.now, end)
        search = FleetSearch(
            network, self.problem.accuracy_target, plan.selection, SearchLimits(self.gap, clock, budget)
        )
        firm = self._plan(network, search.run())
        if firm is not None:
            self._looked(firm)

    def _value(self) -> float:
        return math.inf if self.best is None else self.best.cost.total_usd_per_h

    def _is_near(self, bound: float) -> bool:
        return self.best is not None and self._value() - bound <= self.gap * self._value()


def no_slower(problem: Problem, plan: Plan, pace: Pace) -> Network:
    """The problem with pools and ways for data that are no slower than those that a plan uses, operator by operator."""
    table, network = RouteTable(plan), Network(problem)
    flows: dict[EdgeKey, frozenset[Tiers]] = {}
    operators = []
    for operator in problem.operators:
        name, chosen = operator.name, plan.selection[operator.name]
        slowest_s = max(pace.taken_s(problem, name, chosen, pool) for pool in plan.operator_by_name[name].service)
        tiers = {worker.tier for worker in plan.workers if name in worker.rates_per_s}
        variant = operator.variant(chosen)
        pools = {
            pool
            for pool in network.demand({name: chosen}).workers[name]
            if problem.pool_by_name[pool].tier in tiers
            and pace.taken_s(problem, name, chosen, pool) <= slowest_s * (1 + VALUE_TOLERANCE)
        }
        operators.append(replace(operator, variants=(_only(variant, pools),)))
        for edge in operator.inputs:
            flows[edge.upstream, name] = frozenset(table.crossings(edge)[0])
    return Network(replace(problem, operators=tuple(operators)), flows)


def _only(variant: Variant, pools: set[str]) -> Variant:
    return replace(variant, service={pool: times for pool, times in variant.service.items() if pool in pools})


def _slowest_s(found: Latency) -> float:
    return max(found.p99_s, found.unqueued_s)
