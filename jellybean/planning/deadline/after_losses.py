"""Whether a plan keeps its p99 targets after each loss that it is asked to bear; every command judges it here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jellybean.planning.deadline.predicted_latency import latency_breach
from jellybean_solver import Loss, Plan, Problem, judged_losses, plan_after, served


def plans_after_losses(problem: Problem, plan: Plan) -> Iterator[tuple[Loss, Plan | None]]:
    """Each loss with what is left of the plan, at its rates and with its targets; None if no request is answered."""
    problem = served(problem, plan)
    targets = plan.slo_by_workflow
    workflows = tuple(replace(one, slo=targets[one.name]) for one in problem.workflows)
    planned = replace(problem, sources=plan.sources, slo=plan.slo, workflows=workflows)
    for loss in judged_losses(plan):
        yield loss, plan_after(planned, plan, loss)


def breach_after_loss(problem: Problem, plan: Plan) -> str | None:
    """The p99 target that the plan would miss after a loss that it is asked to bear, in words; None if it keeps all."""
    for loss, left in plans_after_losses(problem, plan):
        if left is None:
            return f"without {loss} no request is answered"
        if (breach := latency_breach(left)) is not None:
            return f"without {loss}: {breach.text}"
    return None
