"""The p99 latencies that several workflows are asked to keep, as one: each may take its share of the longest."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem


def deadline_s(of: Problem | Plan) -> float | None:
    """The p99 latency asked for; of several workflows the longest. None where none is."""
    if not of.workflows:
        return of.slo.latency_p99_s
    return max((w.slo.latency_p99_s for w in of.workflows if w.slo.latency_p99_s is not None), default=None)


def deadline_shares(of: Problem | Plan) -> Mapping[str, float]:
    """By workflow the share of a deadline that is its own; none for one that is asked for nothing while others are.

    Under no name where there is one workflow. Where none is asked for anything all of the deadline is every one's.
    """
    if not of.workflows:
        return {"": 1.0}
    longest = deadline_s(of)
    if longest is None:
        return {workflow.name: 1.0 for workflow in of.workflows}
    asked = {workflow.name: workflow.slo.latency_p99_s for workflow in of.workflows}
    return {name: target_s / longest for name, target_s in asked.items() if target_s is not None}


def deadline_share(problem: Problem, operator: str) -> float | None:
    """That of an operator's workflow; None for one that is asked for nothing."""
    return deadline_shares(problem).get(problem.workflow_of(operator))
