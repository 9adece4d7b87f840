"""Deadlines of several workflows, expressed as fractions of the longest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jellybean_solver.model.multi_workflow import ProblemOrPlan, with_slos
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem


def deadlines_s(of: Problem | Plan) -> Mapping[str, float | None]:
    """Workflow -> p99 latency target in seconds, None without a target; a single workflow has the name ""."""
    return {name: slo.latency_p99_s for name, slo in of.slo_by_workflow.items()}


def deadline_s(of: Problem | Plan) -> float | None:
    """The p99 latency target in seconds, with several workflows the longest one; None if none has a target."""
    return max((target_s for target_s in deadlines_s(of).values() if target_s is not None), default=None)


def with_deadlines(of: ProblemOrPlan, targets_s: Mapping[str, float | None]) -> ProblemOrPlan:
    """A problem or plan with these p99 latency targets, by workflow as in `deadlines_s`; others keep theirs."""
    return with_slos(of, lambda name, slo: replace(slo, latency_p99_s=targets_s.get(name, slo.latency_p99_s)))


def of_promised(of: ProblemOrPlan) -> ProblemOrPlan:
    """A problem or plan without the deadlines that a search tries in the place of soft targets."""
    return with_slos(of, lambda _, slo: replace(slo, latency_p99_s=slo.promised_p99_s))


def deadline_shares(of: Problem | Plan) -> Mapping[str, float]:
    """Workflow -> its deadline as a share of the longest; workflows without a deadline are left out.

    If no workflow has a deadline, each has a share of 1.
    """
    targets, longest = deadlines_s(of), deadline_s(of)
    if longest is None:
        return dict.fromkeys(targets, 1.0)
    return {name: target_s / longest for name, target_s in targets.items() if target_s is not None}


def on_scale_of(problem: Problem, plan: Plan, seconds: float) -> float:
    """A latency on the scale of the plan's longest deadline on that of the problem's, of which it may lack some.

    0 if no workflow of the plan has a deadline, but one of the problem has.
    """
    longest, own = deadline_s(problem), deadline_s(plan)
    if longest is None or not plan.workflows:
        return seconds
    return 0.0 if own is None else seconds * longest / own


def deadline_share(problem: Problem, operator: str) -> float | None:
    """The deadline of the operator's workflow as a fraction of the longest deadline; None if it has no deadline.

    An audit has none, as nobody waits for it.
    """
    if problem.is_of_audit(operator):
        return None
    return deadline_shares(problem).get(problem.workflow_of(operator))
