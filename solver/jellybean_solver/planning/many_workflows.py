"""The cheapest plan of many workflows on one fleet, or of unlike sites: each of these is a workflow of its own.

A few workflows are one program, to a small gap. That of many is too large, so they are planned one by one at prices for
what they have in common (decomposition/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jellybean_solver.decomposition.search import Decomposed, decompose
from jellybean_solver.decomposition.settings import is_small
from jellybean_solver.decomposition.split import Split, split
from jellybean_solver.decomposition.work import Tell
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.least_cost import least_usd_per_h_of_work
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, termination_of
from jellybean_solver.planning.admission import NONE_SERVED, by_priority, served_exactly
from jellybean_solver.planning.infeasibility import Infeasibility, first_reason
from jellybean_solver.planning.solver import AGREEMENT, Solution, certified, cheapest_solution

MOST_TOGETHER = 15  # workflows that one program takes
DECOMPOSED_GAP = 0.02  # relative gap for more of them, if the user sets none
MOST_NAMED = 3  # workflows without a plan whose reasons are given


def has_many_workflows(problem: Problem) -> bool:
    """True if the workflows are to be planned one by one: they are many, and no longer of middle size together."""
    if len(problem.workflows) <= MOST_TOGETHER:
        return False
    return not is_small(problem)


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
    if gap is None:
        gap = DEFAULT_GAP if is_small(problem) else DECOMPOSED_GAP
    return by_priority(problem, _Search(gap, limit, tell).solve, explained=explained)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search of one set of workflows after the other, to a gap within a limit; `tell` hears how far it is."""

    gap: float
    limit: Clock
    tell: Tell

    def solve(self, problem: Problem, explained: bool) -> Solution:
        """The solution for workflows that are left out without regard to their priority.

        If all must be served, the cheapest plan mostly says whether the budget suffices. Only if it costs a little more
        is the budget a limit of a second search.
        """
        budget = problem.slo.budget_usd_per_h
        if problem.may_leave_out or budget is None:
            solution = self._within(problem, split(problem), explained)
            if not problem.may_leave_out or not is_small(problem):
                return solution
            return served_exactly(problem, solution, self._cheapest)
        free = split(replace(problem, slo=replace(problem.slo, budget_usd_per_h=None)))
        solution = self._within(problem, free, explained)
        why = solution.infeasibility
        if why is None or why.refused is None or math.isinf(why.least_usd_per_h):
            return solution
        second = self._within(problem, split(problem), False)
        return second if second.plan is not None else solution

    def _cheapest(self, problem: Problem) -> Solution:
        return cheapest_solution(problem, self.gap, self.limit, explained=False)

    def _within(self, problem: Problem, parts: Split, explained: bool) -> Solution:
        """The solution found for these parts, which may be without the problem's budget."""
        found = decompose(parts, self.gap, self.limit, tell=self.tell)
        if found.plan is None:
            return self._nothing(parts, found, explained)
        evaluation = evaluate(problem, found.plan)
        plan = evaluation.checked(found.plan, within_budget=False)
        forgone, paid = plan.forgone_usd_per_h, evaluation.cost.total_usd_per_h
        cost = paid + forgone
        if abs(found.cost - cost) > AGREEMENT * max(1.0, cost):
            raise SolverError(
                f"the plan found was to cost {found.cost - forgone:.9g} USD/h and costs {paid:.9g}; please report this "
                "problem"
            )
        bound = max(found.bound, least_usd_per_h_of_work(problem))
        plan = certified(plan, bound, termination_of(cost, bound, out_of_time=found.late, gap=self.gap))
        if evaluation.breaches:
            is_proven = bound > (problem.slo.budget_usd_per_h or 0.0)
            least = math.inf if is_proven else plan.certificate.bound
            refused = Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan, least_usd_per_h=least)
            return Solution(None, refused, found.priced)
        return Solution(plan, None, found.priced)

    def _nothing(self, parts: Split, found: Decomposed, explained: bool) -> Solution:
        """The solution without a plan: workflows that have none even alone, or too few common workers and links."""
        if found.impossible:
            reasons = tuple(_alone(parts, found.impossible, self.limit)) if explained else ()
            return Solution(None, Infeasibility(reasons), found.priced)
        if found.late:
            raise OutOfTimeError("no plan of all workflows was found in the time allowed; allow more time")
        if len(found.left_out) == len(parts.parts):
            return Solution(None, Infeasibility((NONE_SERVED,)), found.priced)
        refused = Infeasibility((_short(parts, found),), least_usd_per_h=found.bound)
        return Solution(None, refused, found.priced)


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
