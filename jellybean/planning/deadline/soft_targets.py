"""Soft p99 latencies: which commands know them, and what a plan counts for its own."""

from __future__ import annotations

from jellybean.documents import AnyProject, Project
from jellybean.errors import InputError
from jellybean.quantities import DURATION, format_quantity
from jellybean_solver import Plan

LEAST_PENALTY = 1e-9  # USD per hour; a penalty below it is a rounding error


def refuse_soft_latency(project: AnyProject, command: str) -> None:
    """InputError if the p99 latency is soft, which `command` does not know."""
    target_s = project.workflow.slo.soft_latency_p99_s if isinstance(project, Project) else None
    if target_s is not None:
        target = format_quantity(DURATION, target_s)
        hard = f"--set 'slo.latency_p99={target}'"
        raise InputError(f"`jellybean {command}` does not know soft p99 latencies; with a hard one: {hard}")


def planned_latency_penalty(plan: Plan) -> float:
    """USD per hour that a plan counts for its p99 latency, as its certificate states it; 0 if it meets the target."""
    if plan.slo.soft_latency_p99_s is None:
        return 0.0
    penalty = plan.certificate.penalty_usd_per_h - plan.accuracy_penalty_usd_per_h
    return penalty if penalty > LEAST_PENALTY else 0.0


def planned_late_p99_s(plan: Plan) -> float | None:
    """The p99 latency for which a plan counts a penalty, as it was predicted; None if it counts none."""
    target_s, price = plan.slo.soft_latency_p99_s, plan.slo.latency_penalty_usd_per_h_per_s
    penalty = planned_latency_penalty(plan)
    return None if target_s is None or price is None or not penalty else target_s + penalty / price
