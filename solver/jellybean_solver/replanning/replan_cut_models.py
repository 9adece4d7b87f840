"""Re-planning with models that may be cut in two: the running plan's own cuts, and others that may be cheaper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.planning.cut_models import Cuts, choices, cut_problem, least_usd_per_h, problem_as_planned
from jellybean_solver.planning.solver import limited
from jellybean_solver.replanning.replan import Replanned, ReplanSettings, SearchSettings, Verdict, replan, saves_enough


def replan_cut(
    problem: Problem,
    cuts: Cuts,
    before: Plan,
    settings: ReplanSettings,
    *,
    check: Callable[[Plan], str | None] = lambda plan: None,
    instead: Callable[[], Plan | None] = lambda: None,
    search: SearchSettings | None = None,
) -> Replanned:
    """As `replan`, over all choices of cuts."""
    search = search or SearchSettings()
    limit = limited(search.time_limit_s, search.clock)

    def left() -> SearchSettings:
        return replace(search, time_limit_s=limit.left())

    own = problem_as_planned(problem, cuts, before)
    decision = replan(own, before, settings, check=check, instead=instead, search=left())
    others = [one for one in (cut_problem(problem, choice) for choice in choices(cuts)) if one != own]
    for least, number in sorted((least_usd_per_h(one), number) for number, one in enumerate(others)):
        least_usd = least * settings.horizon_h
        if decision.best_usd is not None and least_usd >= decision.best_usd:
            break  # its lower bound is not below the incumbent
        try:
            found = replan(others[number], before, settings, check=check, search=left())
        except OutOfTimeError:
            decision = replace(decision, bound_usd=min(decision.bound_usd, least_usd))
            continue
        decision = _cheaper(decision, found)
    return decision


def _cheaper(decision: Replanned, found: Replanned) -> Replanned:
    """The decision, updated by another choice of cuts if its change is cheaper."""
    tried, bound_usd = decision.tried + found.tried, min(decision.bound_usd, found.bound_usd)
    known = replace(decision, tried=tried, bound_usd=bound_usd)
    if found.best_usd is None or (decision.best_usd is not None and found.best_usd >= decision.best_usd):
        return known
    taken = replace(known, best=found.best, migration=found.migration, refused=found.refused, infeasibility=None)
    verdict = Verdict.REPLACE if taken.broken or saves_enough(taken) else Verdict.KEEP
    return replace(taken, verdict=verdict)
