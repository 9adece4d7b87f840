"""The cheapest way to serve further workflows beside a running plan, whose workflows keep their workers and routes.

It takes as long as the new workflows alone, however many are served. Its proof is about just that: no plan that leaves
the others where they are costs less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from jellybean_solver.beside.kept import Kept, kept_part
from jellybean_solver.beside.left_over import LeftOver, left_over
from jellybean_solver.beside.merged import merged, with_fallbacks
from jellybean_solver.errors import SolverError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.model.deadline_shares import deadline_s
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Termination
from jellybean_solver.planning.form_search import solve_forms
from jellybean_solver.planning.forms import Form, Forms, chosen_in, problem_as_planned, problem_in_forms
from jellybean_solver.planning.solve import SolveOptions
from jellybean_solver.planning.solver import Solution

MOST_NAMED = 3  # complaints about what is kept
NO_FORMS: Forms = MappingProxyType({})
T = TypeVar("T")


@dataclass(frozen=True)
class Added:
    """`solution`: of all workflows; without a plan if the new ones do not fit into what is left. `kept`: what stays."""

    kept: Kept
    solution: Solution


def add_workflows(
    problem: Problem, before: Plan, options: SolveOptions = SolveOptions(), forms: Forms = NO_FORMS
) -> Added:
    """Plan the workflows that a running plan lacks, or whose figures have changed since; the others stay as they are.

    The gap, by default that of large fleets, is of what the new ones cost; small problems are always solved to the end.
    SolverError if the problem has one workflow only, or if what would stay does not fit onto the present fleet.
    """
    if not problem.workflows or not before.workflows:
        raise SolverError("workflows can be added to a plan of several workflows, or of sites that differ, only")
    used = chosen_in(before, forms)
    kept = kept_part(problem_in_forms(problem, used) or problem, before)
    if not kept.workflows:
        return Added(kept, solve_forms(problem, forms, options))
    stays = problem_in_forms(problem, _of_workflows(problem, used, kept.workflows)) or problem
    if not kept.planned:
        return Added(kept, _alone(stays, kept))
    left = left_over(stays, kept.planned, kept)
    own = _of_workflows(problem, forms, kept.planned)
    open_forms = {name: tuple(_beside(left, form) for form in few) for name, few in own.items()}
    solution = solve_forms(left.problem, open_forms, _for_new(left.problem, options))
    if solution.plan is None:
        return Added(kept, solution)
    whole = problem_as_planned(stays, own, solution.plan)
    plan = _checked(whole, kept, merged(whole, kept, solution.plan, left, solution.plan.certificate))
    return Added(kept, replace(solution, plan=plan, certificate=plan.certificate))


def _beside(left: LeftOver, form: Form) -> Form:
    return replace(form, operators=tuple(left.beside(operator) for operator in form.operators))


def _of_workflows(problem: Problem, by_operator: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    """What belongs to the operators of some workflows."""
    return {name: one for name, one in by_operator.items() if problem.workflow_of(name) in names}


def _for_new(problem: Problem, options: SolveOptions) -> SolveOptions:
    """The options for the new workflows alone: a deadline is their own longest one, not that of those that stay."""
    deadline, longest_s = options.deadline, deadline_s(problem)
    own = None if deadline is None or longest_s is None else replace(deadline, p99_s=longest_s)
    return replace(options, gap=DEFAULT_GAP if options.gap is None else options.gap, deadline=own)


def _alone(problem: Problem, kept: Kept) -> Solution:
    """The solution if there is nothing to plan."""
    certificate = Certificate(0.0, 0.0, 0.0, Termination.OPTIMAL)
    plan = with_fallbacks(problem, replace(kept.plan, slo=problem.slo, certificate=certificate), (kept.plan,))
    plan = _checked(problem, kept, plan)
    return Solution(certificate.termination, plan, None, 0, plan.certificate)


def _checked(problem: Problem, kept: Kept, plan: Plan) -> Plan:
    """The plan with its cost and accuracies, and the proof of what was added for all of it.

    SolverError if it contradicts the problem.
    """
    score = evaluate(problem, plan)
    if score.complaints:
        before = evaluate(restricted(problem, kept.workflows), kept.plan).complaints
        if before:
            raise SolverError(
                f"the running plan cannot stay as it is: {_some(before)}; plan all workflows anew, without --add"
            )
        raise SolverError(
            f"the plan found contradicts the problem ({_some(score.complaints)}); please report this problem"
        )
    proof = plan.certificate
    cost = score.cost.total_usd_per_h + proof.forgone_usd_per_h
    bound = min(cost, cost - proof.objective + proof.bound)
    certificate = replace(
        Certificate.of(cost, bound, proof.termination),
        keeps=len(kept.workflows),
        forgone_usd_per_h=proof.forgone_usd_per_h,
    )
    return replace(score.stated(plan), certificate=certificate)


def _some(complaints: Sequence[str]) -> str:
    more = len(complaints) - MOST_NAMED
    return "; ".join(complaints[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
