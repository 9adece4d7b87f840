"""Soft p99 latencies of a problem's or plan's workflows, and what a plan counts for its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jellybean.quantities import DURATION, rounded_up
from jellybean_solver import Plan, Problem, Slo, with_slos


@dataclass(frozen=True, slots=True)
class SoftTarget:
    """A p99 latency, and what each second above it counts."""

    p99_s: float
    usd_per_h_per_s: float

    def penalty(self, p99_s: float) -> float:
        """USD per hour for a p99 latency."""
        return self.usd_per_h_per_s * max(0.0, p99_s - self.p99_s)


def soft_targets(of: Problem | Plan) -> Mapping[str, SoftTarget]:
    """Workflow -> its soft p99 latency; those without one are left out. A single workflow has the empty name."""
    return {
        name: SoftTarget(seconds, price)
        for name, slo in of.slo_by_workflow.items()
        if (seconds := slo.soft_latency_p99_s) is not None
        and (price := slo.latency_penalty_usd_per_h_per_s) is not None
    }


def as_hard(problem: Problem, targets_s: Mapping[str, float]) -> Problem:
    """The problem with these hard p99 targets instead of the soft ones; a soft one that is not among them is none."""

    def hard(name: str, slo: Slo) -> Slo:
        if slo.soft_latency_p99_s is None:
            return slo
        target_s = None if name not in targets_s else rounded_up(DURATION, targets_s[name])
        return replace(slo, latency_p99_s=target_s, soft_latency_p99_s=None, latency_penalty_usd_per_h_per_s=None)

    return with_slos(problem, hard)


def latency_penalty(plan: Plan, p99_s: Mapping[str, float]) -> float:
    """USD per hour that p99 latencies, by workflow, count above the plan's soft targets."""
    return sum(soft.penalty(p99_s[name]) for name, soft in soft_targets(plan).items())


def planned_late_p99_s(plan: Plan) -> float | None:
    """The p99 latency for which a plan counts a penalty, as it was predicted; None if it counts none.

    None also for several workflows, of which the certificate states the penalty of all together.
    """
    penalty, soft = plan.late_usd_per_h, soft_targets(plan).get("")
    return None if soft is None or not penalty else soft.p99_s + penalty / soft.usd_per_h_per_s
