"""The best plan in time that gives all requests the same selection, for a problem that may mix variants.

The search of mixtures (mode_search.py) is a descent: it may end late although a plan without some variants is in time.
Plans of one selection have a search of their own, for the least cost (deadline/search.py). A soft mean accuracy, and
one that is maximised, are sought by bisection over the accuracies of selections, as if a higher one were never easier
to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import ACCURACY_TOLERANCE

PlanOne = Callable[[Problem], Plan | None]  # the cheapest plan found in time of a problem that does not mix variants


def best_of_one_selection(
    problem: Problem, accuracies: Sequence[float], plan_one: PlanOne, value: Callable[[Plan], float]
) -> Plan | None:
    """The plan of the lowest value; None if none was found. `accuracies`: of the selections, in percent."""
    levels = sorted(set(accuracies))
    stated = problem.slo.accuracy_of_plan
    reaching = [level for level in levels if stated is None or level >= stated - ACCURACY_TOLERANCE]
    if not reaching or (first := plan_one(_of_one_selection(problem, reaching[0]))) is None:
        return None
    best = first
    left = _better_levels(problem, reaching, first)
    while left:
        middle = len(left) // 2
        plan = plan_one(_of_one_selection(problem, left[middle]))
        if plan is None:
            left = left[:middle]
            continue
        best = min(best, plan, key=value)
        left = [level for level in left[middle + 1 :] if level > (plan.accuracy or 0.0) + ACCURACY_TOLERANCE]
    return best


def _better_levels(problem: Problem, levels: Sequence[float], plan: Plan) -> Sequence[float]:
    """The accuracies above a plan's that may be worth more: all, those up to a soft mean, or none."""
    above = [level for level in levels if level > (plan.accuracy or 0.0) + ACCURACY_TOLERANCE]
    mean = problem.slo.mean_accuracy
    if problem.objective is Objective.MEAN_ACCURACY:
        return above
    if problem.slo.penalty_usd_per_h is None or mean is None:
        return []
    return above[: sum(level < mean for level in above) + 1]


def _of_one_selection(problem: Problem, accuracy: float) -> Problem:
    """The problem of the cheapest plan whose one selection has at least an accuracy."""
    slo = replace(problem.slo, accuracy=accuracy, mean_accuracy=None, penalty_usd_per_h=None)
    return replace(problem, slo=slo, objective=Objective.COST)
