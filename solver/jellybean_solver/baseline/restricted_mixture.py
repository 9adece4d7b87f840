"""A plan of few variants and few pools, for a problem of ways (mixture/) whose search finds none in its time.

A restriction has one variant of each operator, and of each tier the pools of least price per throughput. Its program is
small, so that its plan comes soon, and each of its plans is one of the problem. Restrictions are tried from the
smallest on until one has a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from jellybean_solver.baseline.greedy import cheapest_selections
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.deadline_shares import deadline_s
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Pool, Problem
from jellybean_solver.model.targets import LossKind
from jellybean_solver.outcome import Clock, Selection
from jellybean_solver.planning.mixed import plan_with_spare_workers, solve_mixed
from jellybean_solver.planning.solver import Solution

LOSSES_OF_WORKERS = {LossKind.WORKER, LossKind.SPOT_WORKER}


@dataclass(frozen=True, slots=True)
class RestrictionSettings:
    """Effort: larger values find cheaper plans, and plans of scarcer fleets, but take longer."""

    spare: float = 1.2  # capacity of a tier's pools in the first restriction, over what all requests need
    steps: int = 3  # restrictions of each selection, each with twice as many pools of each tier
    selections: int = 3  # tried at each step
    listed: int = 64  # of which those are chosen
    gap: float = 0.3  # relative, at which the search on a restriction ends
    share: float = 0.5  # of the time left, for one restriction


def restricted_plan(
    problem: Problem, clock: Clock, settings: RestrictionSettings = RestrictionSettings()
) -> Plan | None:
    """The plan of the first restriction that has one; None if none has until the `clock` ends.

    If it misses a p99 target by the closed form, that of the first restriction that has one in time, if any has.
    """
    p99_s = deadline_s(problem)
    plan = _first(problem, None, clock.share(settings.share) if p99_s is not None else clock, settings)
    if plan is None or p99_s is None or latency(plan).meets(p99_s):
        return plan
    return _first(problem, Deadline(p99_s), clock, settings) or plan


def _first(problem: Problem, deadline: Deadline | None, clock: Clock, settings: RestrictionSettings) -> Plan | None:
    for restriction in _restrictions(problem, clock, settings):
        if clock.left() == 0.0:
            return None
        plan = _plan(restriction, deadline, clock.share(settings.share), settings.gap)
        if plan is not None:  # scored: a restriction has the problem's targets, rates and limits
            return plan
    return None


def _plan(restriction: Problem, deadline: Deadline | None, clock: Clock, gap: float) -> Plan | None:
    def refuse(problem: Problem) -> Solution:
        raise OutOfTimeError("a restriction has one selection")

    if deadline is None and LOSSES_OF_WORKERS & set(restriction.survives):
        with suppress(SolverError):
            plan = plan_with_spare_workers(restriction, gap=gap, limit=clock)
            if plan is not None and not evaluate(restriction, plan).complaints:
                return plan
    try:
        return solve_mixed(restriction, deadline, gap=gap, limit=clock, explained=False, solve_one=refuse).plan
    except SolverError:
        return None


def _restrictions(problem: Problem, clock: Clock, settings: RestrictionSettings) -> Iterator[Problem]:
    network = Network(problem)
    try:
        selections = _selections(network, clock, settings)
    except OutOfTimeError:
        return
    ranked = [_RankedPools(network, selection) for selection in selections]
    least = [pools.least_count(settings.spare) for pools in ranked]
    tried: set[tuple[int, tuple[Pool, ...]]] = set()
    for step in range(settings.steps):
        for number, (selection, pools) in enumerate(zip(selections, ranked, strict=True)):
            few = pools.best(least[number] * 2**step)
            if (number, few) not in tried:
                tried.add((number, few))
                yield _restricted(problem, selection, few)


def _selections(network: Network, clock: Clock, settings: RestrictionSettings) -> Sequence[Selection]:
    """The selections to try, the best first: by the price of their work and their penalty, or by their accuracy.

    Of several workflows the best of each together, then the second ones.
    """
    problem = network.problem
    if problem.workflows:
        alone = [Network(single_workflow(problem, workflow)) for workflow in problem.workflows]
        listed_each = [_selections(own, clock, settings) for own in alone]
        most = max(map(len, listed_each)) if all(listed_each) else 0
        return [
            dict(item for own in listed_each for item in own[min(number, len(own) - 1)].items())
            for number in range(most)
        ]
    slo, accuracy = network.problem.slo, network.problem.accuracy
    listed = cheapest_selections(network, slo.accuracy_of_plan, settings.listed, clock)
    if slo.mean_accuracy is not None and slo.penalty_usd_per_h is not None:
        listed += cheapest_selections(network, slo.mean_accuracy, settings.listed, clock)
    if network.problem.objective is Objective.MEAN_ACCURACY:
        ranked = sorted(listed, key=lambda one: -(accuracy.value(one[1]) or 0.0))
        step = max(1, len(ranked) // settings.selections)
        return [selection for _, selection in ranked[::step]][: settings.selections]
    ranked = sorted(listed, key=lambda one: one[0] + slo.penalty(accuracy.value(one[1])))
    return [selection for _, selection in ranked[: settings.selections]]


class _RankedPools:
    """The pools of each tier in the order of their price per throughput with a selection."""

    def __init__(self, network: Network, selection: Selection) -> None:
        self._network, self._busy = network, network.demand(selection).workers
        usd_per_h = network.usd_per_h
        self._price = {(o, pool): usd_per_h[pool] * busy for o, of in self._busy.items() for pool, busy in of.items()}
        self._least = {
            o: min((self._price[o, pool] for pool in of), default=0.0) or 1.0 for o, of in self._busy.items()
        }
        self._tiers = [
            sorted((pool for pool in network.pools if pool.tier == tier and pool.count > 0), key=self._rank)
            for tier in network.problem.tiers
        ]

    def _rank(self, pool: Pool) -> tuple[int, float]:
        """Pools that run more operators first."""
        own = [self._price[o, pool.name] / self._least[o] for o, of in self._busy.items() if pool.name in of]
        return -len(own), math.fsum(own) / max(1, len(own))

    def least_count(self, spare: float) -> int:
        """The least number of pools of each tier with which those of one tier can serve all requests, and some more."""
        for count in range(1, max(map(len, self._tiers), default=1)):
            if any(math.fsum(map(self._served, pools[:count])) >= spare for pools in self._tiers):
                return count
        return max(1, max(map(len, self._tiers), default=1))

    def _served(self, pool: Pool) -> float:
        """The share of all requests that the workers of a pool can serve; 0 if it does not run all operators."""
        each = [of.get(pool.name, math.inf) for of in self._busy.values()]
        return pool.count / (math.fsum(each) or 1.0)

    def best(self, count: int) -> tuple[Pool, ...]:
        """The first `count` pools of each tier, and one for each operator that none of them runs."""
        chosen: dict[str, None] = {}
        for pools in self._tiers:
            few = [pool.name for pool in pools[:count]]
            for name, of in self._busy.items():
                able = [pool.name for pool in pools if pool.name in of]
                if able and not set(able) & set(few):
                    few.append(min(able, key=lambda pool, name=name: self._price[name, pool]))  # type: ignore[misc]
            chosen |= dict.fromkeys(few)
        return tuple(pool for pool in self._network.problem.pools if pool.name in chosen)


def _restricted(problem: Problem, selection: Selection, pools: tuple[Pool, ...]) -> Problem:
    operators = tuple(replace(one, variants=(one.variant(selection[one.name]),)) for one in problem.operators)
    return replace(problem, operators=operators, pools=pools)
