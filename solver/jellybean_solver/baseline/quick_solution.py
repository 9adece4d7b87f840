"""A quick plan, with a lower bound on what plans cost, where a search found none in its time.

It is the first one within a wide gap. Of a problem of ways (mixture/) it is one of a restriction, which has one variant
of each operator, and of each tier the pools in which an operator costs least. The program of a restriction is small, so
that its plan comes soon, and each of its plans is one of the problem. Restrictions are tried from the smallest on until
one has a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace

from jellybean_solver.baseline.selections import cheapest_selections, of_selection
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.latency.estimate import latency
from jellybean_solver.mixture.seats import TIE
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.forms import without_forms
from jellybean_solver.model.least_cost import least_usd_per_h_of_work
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Objective, Pool, Problem
from jellybean_solver.model.targets import LossKind
from jellybean_solver.outcome import Clock, Selection, Termination
from jellybean_solver.planning.many_workflows import has_many_workflows
from jellybean_solver.planning.mixed import plan_with_spare_workers
from jellybean_solver.planning.solve import SolveOptions, solve_with
from jellybean_solver.planning.solver import Solution

LOSSES_OF_WORKERS = {LossKind.WORKER, LossKind.SPOT_WORKER}


@dataclass(frozen=True, slots=True)
class RestrictionSettings:
    """Effort: larger values find cheaper plans, and plans of scarcer fleets, but take longer."""

    selections: int = 3  # tried with each number of pools
    listed: int = 64  # of which those are chosen
    gap: float = 0.3  # relative, at which the search on a restriction ends
    share: float = 0.5  # of the time left, for one restriction


def quick_solution(
    problem: Problem,
    clock: Clock,
    bound: float = 0.0,
    *,
    ended: Termination = Termination.TIME_LIMIT,
    settings: RestrictionSettings = RestrictionSettings(),
) -> Solution | None:
    """The plan of the first restriction that has one, with a lower `bound` on the cost, and why the search `ended`.

    Of a problem with forms the plan has none, and `bound` holds for all choices of them. If it misses a p99 target by
    the closed form, it is that of the first restriction that has one in time, if any has. None if none has a plan until
    the `clock` ends, or for many workflows, which are planned one by one.
    """
    if has_many_workflows(problem):
        return None
    whole, p99_s = without_forms(problem), problem.deadline_s
    plan = _first_plan(whole, None, clock if p99_s is None else clock.share(settings.share), settings)
    if plan is not None and p99_s is not None and not latency(plan).meets(p99_s):
        plan = _first_plan(whole, Deadline(p99_s), clock, settings) or plan
    return None if plan is None else Solution(replace(plan, certificate=_proof(problem, plan, bound, ended)))


def _proof(problem: Problem, plan: Plan, bound: float, ended: Termination) -> Certificate:
    """The certificate of a rule's plan. `bound`: on the objective, known from the search that found none."""
    if problem.objective is Objective.MEAN_ACCURACY:
        reached = plan.mean_accuracy or 0.0
        return Certificate.of_accuracy(reached, max(reached, 100.0 - bound + TIE), ended)
    penalty = plan.accuracy_penalty_usd_per_h
    value = plan.cost.total_usd_per_h + penalty
    least = 0.0 if problem.has_forms else least_usd_per_h_of_work(problem)
    proof = Certificate.of(value, min(max(bound, least), value), ended)
    return replace(proof, penalty_usd_per_h=penalty)


def _first_plan(
    problem: Problem, deadline: Deadline | None, clock: Clock, settings: RestrictionSettings
) -> Plan | None:
    with suppress(OutOfTimeError):
        for restriction in _restrictions(problem, clock, settings):
            if clock.left() == 0.0:
                return None
            within = clock.share(settings.share) if problem.is_for_ways else clock
            plan = _plan(restriction, deadline, within, settings.gap)
            if plan is not None:  # scored: a restriction has the problem's targets, rates and limits
                return plan
    return None


def _plan(restriction: Problem, deadline: Deadline | None, clock: Clock, gap: float) -> Plan | None:
    with suppress(SolverError):
        if deadline is None and LOSSES_OF_WORKERS & set(restriction.survives):
            plan = plan_with_spare_workers(restriction, gap=gap, limit=clock)
            if plan is not None and not evaluate(restriction, plan).complaints:
                return plan
    with suppress(SolverError):
        options = SolveOptions(gap, clock.left(), clock.now, explained=False, deadline=deadline)
        # In a context of its own, as the time limit of the work around it has ended.
        return Context().run(solve_with, restriction, options).plan
    return None


def _restrictions(problem: Problem, clock: Clock, settings: RestrictionSettings) -> Iterator[Problem]:
    """Each selection with the pools in which an operator costs least, then with twice as many, and so on."""
    if not problem.is_for_ways:
        yield problem
        return
    network, selections = Network(problem), _selections(problem, clock, settings)
    tried: dict[int, tuple[Pool, ...]] = {}
    for step in range(len(network.pools).bit_length() + 1):
        for number, selection in enumerate(selections):
            pools = _cheapest_pools(network, selection, 2**step)
            if tried.get(number) != pools:
                tried[number] = pools
                yield of_selection(replace(problem, pools=pools), selection)


def _selections(problem: Problem, clock: Clock, settings: RestrictionSettings) -> list[Selection]:
    """The selections to try, the best first: by the price of their work and their penalty, or by their accuracy.

    Of several workflows the best of each together, then the second ones.
    """
    if problem.workflows:
        parts = [single_workflow(problem, workflow) for workflow in problem.workflows]
        each = [_selections(part, clock, settings) for part in parts]
        most = max(map(len, each)) if all(each) else 0
        return [
            {name: variant for own in each for name, variant in own[min(number, len(own) - 1)].items()}
            for number in range(most)
        ]
    network, slo = Network(problem), problem.slo
    targets = dict.fromkeys((slo.accuracy_of_plan, slo.mean_accuracy or slo.accuracy_of_plan))
    listed = [one for target in targets for one in cheapest_selections(network, target, settings.listed, clock)]

    def rank(one: tuple[float, Selection]) -> float:
        accuracy = problem.accuracy.value(one[1])
        if problem.objective is Objective.MEAN_ACCURACY:
            return -(accuracy or 0.0)
        return one[0] + slo.penalty(accuracy)

    ranked = sorted(listed, key=rank)
    return [selection for _, selection in ranked[:: max(1, len(ranked) // settings.selections)]][: settings.selections]


def _cheapest_pools(network: Network, selection: Selection, count: int) -> tuple[Pool, ...]:
    """Of each tier the `count` pools in which an operator costs least."""
    chosen: set[str] = set()
    for busy in network.demand(selection).workers.values():
        ranked = sorted(busy, key=lambda pool, busy=busy: network.usd_per_h[pool] * busy[pool])  # type: ignore[misc]
        for tier in network.problem.tiers:
            chosen |= set([pool for pool in ranked if network.tier_of[pool] == tier][:count])
    return tuple(pool for pool in network.pools if pool.name in chosen)
