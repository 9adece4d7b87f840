"""Rescores a plan: its choices, workers and routes with the rates, prices and profiles of the present problem."""

from __future__ import annotations

from collections.abc import Iterator

from jellybean_solver.model.evaluate import Evaluation, evaluate, unknown_choices
from jellybean_solver.model.left_out import served
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures


def rescore(problem: Problem, plan: Plan) -> tuple[Plan, Evaluation, tuple[str, ...]]:
    """The rescored plan, its evaluation, and its violations of the problem as sentences (empty if it is valid).

    A plan with operators or variants that the problem does not have is returned unchanged, with the cost it states.
    Workers of removed pools are kept, and so are the model files that the plan runs.
    """
    if any(unknown_choices(served(problem, plan), plan)):
        score = evaluate(problem, plan)
        return plan, score, score.complaints
    wrong = tuple(_other_models(problem, plan))
    found = with_figures(served(problem, plan), plan)
    score = evaluate(problem, found)
    return score.stated(found), score, (*wrong, *score.complaints)


def _other_models(problem: Problem, plan: Plan) -> Iterator[str]:
    for planned in plan.variants:
        variant = problem.operator_by_name[planned.name].variant(planned.variant)
        before = planned.model.sha256 if planned.model is not None else None
        now = variant.model.sha256 if variant.model is not None else None
        if before != now:
            yield (
                f"{planned.name} runs another file of variant {planned.variant}: SHA-256 {(before or 'none')[:12]}, "
                f"now {(now or 'none')[:12]}"
            )
