"""Soft p99 latencies of a problem's or plan's workflows, and what a plan counts for its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jellybean.documents import AnyProject, Project
from jellybean.errors import InputError
from jellybean.planning.deadline.soft_search import SoftTarget
from jellybean.quantities import DURATION, format_quantity, rounded_up
from jellybean_solver import Plan, Problem, Slo

LEAST_PENALTY = 1e-9  # USD per hour; a penalty below it is a rounding error


def soft_targets(of: Problem | Plan) -> Mapping[str, SoftTarget]:
    """Workflow -> its soft p99 latency; those without one are left out. A single workflow has the empty name."""
    stated = {
        name: (slo.soft_latency_p99_s, slo.latency_penalty_usd_per_h_per_s) for name, slo in of.slo_by_workflow.items()
    }
    return {
        name: SoftTarget(seconds, price)
        for name, (seconds, price) in stated.items()
        if seconds is not None and price is not None
    }


def refuse_soft_latency(project: AnyProject, command: str) -> None:
    """InputError if a p99 latency is soft, which `command` does not know."""
    parts = {"": project} if isinstance(project, Project) else project.workflows
    for name, part in parts.items():
        target_s = part.workflow.slo.soft_latency_p99_s
        if target_s is not None:
            path = f"{name}.slo.latency_p99" if name else "slo.latency_p99"
            hard = f"--set '{path}={format_quantity(DURATION, target_s)}'"
            raise InputError(f"`jellybean {command}` does not know soft p99 latencies; with a hard one: {hard}")


def as_hard(problem: Problem, targets_s: Mapping[str, float]) -> Problem:
    """The problem with these hard p99 targets instead of the soft ones; a soft one that is not among them is none."""

    def hard(name: str, slo: Slo) -> Slo:
        if slo.soft_latency_p99_s is None:
            return slo
        target_s = None if name not in targets_s else rounded_up(DURATION, targets_s[name])
        return replace(slo, latency_p99_s=target_s, soft_latency_p99_s=None, latency_penalty_usd_per_h_per_s=None)

    workflows = tuple(replace(one, slo=hard(one.name, one.slo)) for one in problem.workflows)
    return replace(problem, slo=problem.slo if workflows else hard("", problem.slo), workflows=workflows)


def latency_penalty(plan: Plan, p99_s: Mapping[str, float]) -> float:
    """USD per hour that p99 latencies, by workflow, count above the plan's soft targets."""
    return sum(soft.penalty(p99_s[name]) for name, soft in soft_targets(plan).items())


def planned_latency_penalty(plan: Plan) -> float:
    """USD per hour that a plan counts for its p99 latencies, as its certificate states it; 0 if all targets are met."""
    if not soft_targets(plan):
        return 0.0
    penalty = plan.certificate.penalty_usd_per_h - plan.accuracy_penalty_usd_per_h
    return penalty if penalty > LEAST_PENALTY else 0.0


def planned_late_p99_s(plan: Plan) -> float | None:
    """The p99 latency for which a plan counts a penalty, as it was predicted; None if it counts none.

    None also for several workflows, of which the certificate states the penalty of all together.
    """
    penalty, soft = planned_latency_penalty(plan), soft_targets(plan).get("")
    return None if soft is None or not penalty else soft.p99_s + penalty / soft.usd_per_h_per_s
