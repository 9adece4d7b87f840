"""Rescores a plan: its choices, workers and routes with the rates, prices and profiles of the present problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.model.evaluate import Evaluation, evaluate, misfits
from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.left_out import left_out, served
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.resources import in_money
from jellybean_solver.model.stated_figures import with_figures


def rescore(problem: Problem, plan: Plan) -> tuple[Plan, Evaluation, tuple[str, ...]]:
    """The rescored plan, its evaluation, and its violations of the problem as sentences (empty if it is valid).

    What it leaves out is worth what the problem says. A plan with operators or variants that the problem does not have
    is returned unchanged, with the cost it states. Workers of removed pools are kept, and so are the model files that
    the plan runs.
    """
    problem = as_planned(problem, plan)
    if any(misfits(served(problem, plan), plan)):
        score = evaluate(problem, plan)
        return plan, score, score.complaints
    wrong = tuple(_other_models(problem, plan))
    worths = {one.name: one for one in left_out(problem, [one.name for one in plan.left_out])}
    gone = tuple(worths.get(one.name, one) for one in plan.left_out)
    found = replace(with_figures(served(problem, plan), plan), left_out=gone)
    score = evaluate(problem, found)
    return score.stated(found), score, (*wrong, *score.complaints)


def in_true_prices(problem: Problem, plan: Plan) -> Plan:
    """A plan of a `counted` problem with the prices of money; its certificate stays that of what was counted."""
    if problem.counts is Objective.COST:
        return plan
    stated, _, _ = rescore(in_money(problem), plan)
    return replace(stated, certificate=replace(plan.certificate, objective_of=problem.counts))


def as_counted(problem: Problem, plan: Plan) -> Plan:
    """A plan with true prices with those of a `counted` problem."""
    return plan if problem.counts is Objective.COST else rescore(problem, plan)[0]


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
