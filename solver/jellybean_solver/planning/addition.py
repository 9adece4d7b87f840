"""The cheapest way to serve further workflows beside a running plan, whose workflows keep their workers and routes.

It takes as long as the new workflows alone, however many are served. Its proof is about just that: no plan that leaves
the others where they are costs less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean_solver.beside.kept import Kept, kept_part
from jellybean_solver.beside.left_over import left_over
from jellybean_solver.beside.merged import merged, with_fallbacks
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.figures import listed
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.forms import as_planned, chosen_in, in_forms
from jellybean_solver.model.left_out import left_out
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Termination
from jellybean_solver.planning.solve import SolveOptions, solve_with
from jellybean_solver.planning.solver import Solution, certified


@dataclass(frozen=True)
class Added:
    """`solution`: of all workflows; without a plan if the new ones do not fit into what is left. `kept`: what stays."""

    kept: Kept
    solution: Solution


def add_workflows(
    problem: Problem,
    before: Plan,
    options: SolveOptions = SolveOptions(),
    solve: Callable[[Problem, SolveOptions], Solution] = solve_with,
) -> Added:
    """Plan the workflows that a running plan lacks, or whose figures have changed since; the others stay as they are.

    `solve` plans them. If all may be left out, and it finds no plan for any of them or none in time, they are left out.
    The gap, by default that of large fleets, is of what the new ones cost; small problems are always solved to the end.
    SolverError if the problem has one workflow only, or if what would stay does not fit onto the present fleet.
    """
    if not problem.workflows or not before.workflows:
        raise SolverError("workflows can be added to a plan of several workflows, or of sites that differ, only")
    kept = kept_part(as_planned(problem, before), before)
    if not kept.workflows:
        return Added(kept, solve(problem, options))
    if not kept.planned:
        return Added(kept, _alone(as_planned(problem, kept.plan), kept))
    left = left_over(problem, kept)
    may_stay_out = all(one.worth_usd_per_h is not None for one in left.problem.workflows)
    least = 0.0
    try:
        solution = solve(left.problem, _for_new(left.problem, options))
        if solution.infeasibility is not None:
            least = solution.infeasibility.least_usd_per_h
    except OutOfTimeError as error:
        if not may_stay_out:
            raise
        solution, least = Solution(None), error.bound
    if solution.plan is None:
        return Added(kept, _alone(as_planned(problem, kept.plan), kept, least) if may_stay_out else solution)
    chosen = {**chosen_in(kept.plan, problem), **chosen_in(solution.plan, problem)}
    whole = in_forms(problem, chosen) or problem
    plan = _checked(whole, kept, merged(whole, kept, solution.plan, left))
    return Added(kept, replace(solution, plan=plan))


def _for_new(problem: Problem, options: SolveOptions) -> SolveOptions:
    """The options for the new workflows alone: a deadline is their own longest one, not that of those that stay."""
    deadline, longest_s = options.deadline, problem.deadline_s
    own = None if deadline is None or longest_s is None else replace(deadline, p99_s=longest_s)
    return replace(options, gap=DEFAULT_GAP if options.gap is None else options.gap, deadline=own)


def _alone(problem: Problem, kept: Kept, least: float = 0.0) -> Solution:
    """The solution if nothing is served beside what stays. `least`: lower bound on the cost of what is new."""
    gone = left_out(problem, kept.planned)
    forgone = sum(one.worth_usd_per_h for one in gone)
    proof = Certificate.of(forgone, min(forgone, least), Termination.GAP)
    plan = replace(kept.plan, slo=problem.slo, left_out=gone, certificate=proof)
    return Solution(_checked(problem, kept, with_fallbacks(problem, plan, (kept.plan,))))


def _checked(problem: Problem, kept: Kept, plan: Plan) -> Plan:
    """The plan with its cost and accuracies, and the proof of what was added for all of it.

    SolverError if it contradicts the problem.
    """
    score = evaluate(problem, plan)
    if score.complaints:
        before = evaluate(restricted(problem, kept.workflows), kept.plan).complaints
        if before:
            text = listed(before, between="; ")
            raise SolverError(f"the running plan cannot stay as it is: {text}; plan all workflows anew, without --add")
    plan, proof = score.checked(plan), plan.certificate
    plan = certified(plan, plan.counted_usd_per_h - proof.objective + proof.bound, proof.termination)
    return replace(plan, certificate=replace(plan.certificate, keeps=len(kept.workflows)))
