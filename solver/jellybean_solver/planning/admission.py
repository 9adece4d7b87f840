"""Which workflows are served if not all of them fit or pay: those of the highest priority first, then by their worth.

A workflow that states what it is worth may be left out. Of those of one priority the plan serves those that together
are worth the most beyond what they cost. No workflow is left out for others of a lower priority: each level is planned
with the levels above it alone, and who is served there has to be served from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.left_out import left_out
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Certificate
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.planning.solver import Solution, certified

NONE_SERVED = "no workflow is worth what serving it costs, or none fits: the plan would leave out all of them"

SolveLevel = Callable[[Problem, bool], Solution]  # a problem of one priority, and whether to say why there is no plan


def by_priority(problem: Problem, solve: SolveLevel, *, explained: bool) -> Solution:
    """The solution of a problem whose workflows have several priorities; `solve` plans one priority after the other."""
    optional = {one.name: one.priority for one in problem.workflows if one.worth_usd_per_h is not None}
    levels = sorted(set(optional.values()), reverse=True)
    if len(levels) < 2:
        return solve(problem, explained)
    served: set[str] = set()
    gone: set[str] = set()
    for level in levels[:-1]:
        own = {name for name, priority in optional.items() if priority == level}
        waiting = {name for name, priority in optional.items() if priority < level}
        plan = solve(_decided(problem, served, gone | waiting), False).plan
        left = own if plan is None else {one.name for one in plan.left_out}
        served |= own - left
        gone |= left
    return with_left_out(problem, solve(_decided(problem, served, gone), explained))


def _decided(problem: Problem, served: set[str], gone: set[str]) -> Problem:
    kept = restricted(problem, [one.name for one in problem.workflows if one.name not in gone])
    workflows = tuple(replace(one, worth_usd_per_h=None) if one.name in served else one for one in kept.workflows)
    return replace(kept, workflows=workflows)


def served_exactly(problem: Problem, solution: Solution, solve: Callable[[Problem], Solution]) -> Solution:
    """The solution with the cheapest plan of those whom it serves; of those that must be served if it has no plan.

    `solve` finds that for a problem of which all are served. The workers that prices and packing give may not be the
    fewest, which counts where there are few.
    """
    found = solution.plan
    names = [one.name for one in problem.workflows if one.worth_usd_per_h is None]
    if found is not None:
        names = [one.name for one in found.workflows]
    if not names:
        return solution
    plan = solve(_decided(problem, set(names), {one.name for one in problem.workflows} - set(names))).plan
    if plan is None or (found is not None and plan.cost.total_usd_per_h >= found.cost.total_usd_per_h):
        return solution
    plan = replace(plan, left_out=left_out(problem, [one.name for one in problem.workflows if one.name not in names]))
    bound = 0.0 if solution.certificate is None else solution.certificate.bound
    plan = certified(evaluate(problem, plan).stated(plan), bound)
    return Solution(plan, None, solution.selections_tried)


def with_left_out(problem: Problem, solution: Solution) -> Solution:
    """The solution of a part of a problem as one of `problem`: with all that is left out, and all worths."""
    plan = solution.plan
    if plan is None:
        return solution
    served = {one.name for one in plan.workflows}
    gone = left_out(problem, [one.name for one in problem.workflows if one.name not in served])
    stated = {one.name: one for one in problem.workflows}
    proof = plan.certificate
    if proof.objective_of is Objective.MEAN_ACCURACY:  # of which those that were not asked about have 0
        share = (len(plan.workflows) + len(plan.left_out)) / len(problem.workflows)
        certificate = Certificate.of_accuracy(share * proof.objective, share * proof.bound, proof.termination)
    else:
        forgone = sum(one.worth_usd_per_h for one in gone)
        certificate = replace(proof.with_cost(forgone - proof.forgone_usd_per_h), forgone_usd_per_h=forgone)
    workflows = tuple(replace(one, worth_usd_per_h=stated[one.name].worth_usd_per_h) for one in plan.workflows)
    plan = replace(plan, left_out=gone, workflows=workflows, certificate=certificate)
    return replace(solution, plan=plan)
