"""Workflows that a plan leaves out because they are worth too little: the problem of those that it serves."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jellybean_solver.figures import plain_text
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import LeftOut, Plan
from jellybean_solver.model.problem import Problem


def served(problem: Problem, plan: Plan) -> Problem:
    """The problem without the workflows that a plan leaves out."""
    if not plan.left_out:
        return problem
    gone = {one.name for one in plan.left_out}
    return restricted(problem, [workflow.name for workflow in problem.workflows if workflow.name not in gone])


def left_out(problem: Problem, names: Collection[str]) -> tuple[LeftOut, ...]:
    """These workflows as what a plan leaves out, in the problem's order."""
    return tuple(
        LeftOut(one.name, one.worth_usd_per_h or 0.0, one.owner) for one in problem.workflows if one.name in names
    )


def wrongly_left_out(problem: Problem, plan: Plan) -> Iterator[str]:
    """Sentences on workflows that are left out although they must be served, or that are unknown."""
    known = {workflow.name: workflow for workflow in problem.workflows}
    for one in plan.left_out:
        if one.name not in known:
            yield f"the plan leaves out {one.name}, which the problem does not have"
        elif (worth := known[one.name].worth_usd_per_h) is None:
            yield f"the plan leaves out {one.name}, which must be served"
        elif worth != one.worth_usd_per_h:
            stated = f"{plain_text(one.worth_usd_per_h)} USD/h"
            yield f"the plan leaves out {one.name} as worth {stated}, but it is worth {plain_text(worth)}"
