"""A plan by a simple rule, with a lower bound on what plans cost, for a search that found none in its time."""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.baseline.greedy import GreedySettings, greedy
from jellybean_solver.baseline.restricted_mixture import restricted_plan
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.mixture.seats import TIE
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.forms import without_forms
from jellybean_solver.model.least_cost import least_usd_per_h_of_work
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import Clock, Termination
from jellybean_solver.planning.many_workflows import has_many_workflows
from jellybean_solver.planning.solver import Solution
from jellybean_solver.small.routes import build_plan

# A first plan of 300 pools in half a second, without links that carry too much.
QUICK_GREEDY = GreedySettings(kept=4, selections=16, within_links=True)


def quick_solution(
    problem: Problem,
    clock: Clock,
    bound: float = 0.0,
    *,
    ended: Termination = Termination.TIME_LIMIT,
) -> Solution | None:
    """The plan of the greedy rule for a search that found none, with a lower `bound` on the cost, and why it `ended`.

    Of a problem with forms the plan has none, and `bound` holds for all choices of them.
    The cheapest of its plans on all workers, and on those of one tier alone. Where plans mix variants or survive losses
    it is one of few variants and pools instead (`restricted_plan`). None if the rule finds none until the `clock` ends,
    if all its plans miss a target, or for many workflows, which are planned one by one.
    """
    if has_many_workflows(problem):
        return None
    whole = without_forms(problem)
    plan = restricted_plan(whole, clock) if problem.is_for_ways else _cheapest_greedy_plan(whole, clock)
    if plan is None:
        return None
    return Solution(replace(plan, certificate=_proof(problem, plan, bound, ended)))


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


def _cheapest_greedy_plan(problem: Problem, clock: Clock) -> Plan | None:
    one_tier = (
        replace(problem, pools=tuple(pool for pool in problem.pools if pool.tier == tier))
        for tier in reversed(problem.tiers)
    )
    plans = filter(None, (_greedy_plan(problem, case, clock) for case in (problem, *one_tier)))
    return min(plans, key=lambda plan: plan.cost.total_usd_per_h, default=None)


def _greedy_plan(problem: Problem, case: Problem, clock: Clock) -> Plan | None:
    """A plan of the greedy rule on the pools of `case`; None without one, or if it misses a target of the problem."""
    try:
        found = greedy(case, clock, QUICK_GREEDY)
    except OutOfTimeError:
        return None
    if isinstance(found, str):
        return None
    network, selection, assignment = found
    unproven = Certificate.of(assignment.cost, 0.0, Termination.TIME_LIMIT)
    draft = build_plan(network, selection, assignment, unproven)
    evaluation = evaluate(problem, draft)
    return None if evaluation.complaints else evaluation.stated(draft)
