"""The cheapest plan of many workflows on one fleet, or of unlike sites: each of these is a workflow of its own.

A few workflows are one program, to a small gap. That of many is too large, so they are planned one by one at prices for
what they have in common (decomposition/).
"""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.decomposition.search import Decomposed, decompose
from jellybean_solver.decomposition.split import Split, split
from jellybean_solver.decomposition.work import Tell
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.settings import DEFAULT_SETTINGS
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.plan import Certificate
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, termination_of
from jellybean_solver.planning.infeasibility import Infeasibility, first_reason
from jellybean_solver.planning.solver import AGREEMENT, Solution

MOST_TOGETHER = 15  # workflows that one program takes
DECOMPOSED_GAP = 0.02  # relative gap for more of them, if the user sets none
MOST_NAMED = 3  # workflows without a plan whose reasons are given


def has_many_workflows(problem: Problem) -> bool:
    """True if the workflows are to be planned one by one: they are many, and no longer of middle size together."""
    if len(problem.workflows) <= MOST_TOGETHER:
        return False
    places = sum(len(variant.service) for operator in problem.operators for variant in operator.variants)
    return places > DEFAULT_SETTINGS.middle_size


def solve_many(
    problem: Problem,
    gap: float | None,
    limit: Clock,
    *,
    explained: bool,
    tell: Tell = lambda share, known: None,
) -> Solution:
    """The cheapest plan found without regard to latency, with a bound; or why there is none.

    `gap`: at which the search ends. `tell`: hears how far it is. OutOfTimeError if time ends before a plan was found.
    """
    gap = DECOMPOSED_GAP if gap is None else gap
    parts = split(problem)
    found = decompose(parts, gap, limit, tell=tell)
    if found.plan is None:
        return _nothing(parts, found, limit, explained=explained)
    evaluation = evaluate(problem, found.plan)
    cost = evaluation.cost.total_usd_per_h
    if evaluation.violations or abs(found.cost - cost) > AGREEMENT * max(1.0, cost):
        raise SolverError(
            f"the plan found contradicts the problem ({'; '.join(evaluation.violations[:MOST_NAMED])}; it was to cost "
            f"{found.cost:.9g} USD/h and costs {cost:.9g}); please report this problem"
        )
    bound = min(found.bound, cost)
    certificate = Certificate.of(cost, bound, termination_of(cost, bound, out_of_time=found.late, gap=gap))
    plan = replace(evaluation.stated(found.plan), certificate=certificate)
    if evaluation.breaches:
        refused = Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan, least_usd_per_h=bound)
        return Solution("infeasible", None, refused, found.priced, certificate)
    return Solution(certificate.termination, plan, None, found.priced, certificate)


def _nothing(parts: Split, found: Decomposed, limit: Clock, *, explained: bool) -> Solution:
    """The solution without a plan: workflows that have none even alone, or too few common workers and links."""
    if found.impossible:
        reasons = tuple(_alone(parts, found.impossible, limit)) if explained else ()
        return Solution("infeasible", None, Infeasibility(reasons), found.priced, None)
    if found.late:
        raise OutOfTimeError("no plan of all workflows was found in the time allowed; allow more time")
    refused = Infeasibility((_short(parts, found),), least_usd_per_h=found.bound)
    return Solution("infeasible", None, refused, found.priced, None)


def _alone(parts: Split, numbers: tuple[int, ...], limit: Clock) -> list[str]:
    named = [parts.parts[number] for number in numbers[:MOST_NAMED]]
    reasons = [f"{part.name}: {first_reason(Network(part), limit) or 'it has no plan even alone'}" for part in named]
    more = len(numbers) - len(named)
    return [*reasons, f"{more} more workflows have no plan even alone"] if more else reasons


def _short(parts: Split, found: Decomposed) -> str:
    """A sentence on what many workflows have in common, of which there is too little."""
    pools = [f"{pool.count} of {pool.name}" for pool in (*parts.shared, *parts.exclusive)]
    links = [f"{below} -> {above}" for below, above in parts.links]
    common = ", ".join([*pools, *links])
    without = f"about {found.unserved:.0f} stay without" if found.unserved >= 1 else "one stays without"
    return (
        f"no plan was found for all {len(parts.parts)} workflows together: {without}, as too few workers or too little "
        f"bandwidth are left of what they have in common ({common}); give more workers there, or lower the rates"
    )
