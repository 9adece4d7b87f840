"""The answer of `plan` as text and as JSON: a plan anew, a change of a running plan, or an addition to it."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from jellybean.cli.planning.plan_json import plan_json
from jellybean.cli.planning.plan_latency import latency_lines
from jellybean.planning.add import AddedPlan
from jellybean.planning.planned import Planned
from jellybean.planning.replan import ReplanResult
from jellybean.report import plan_text, reserved_text
from jellybean.report.plans.addition_view import addition_json, addition_lines
from jellybean.report.plans.replan_view import change_json, change_text
from jellybean_solver import Plan


def answer_text(planned: Planned, plan: Plan) -> RenderableType:
    """The plan with what was asked for it, or the decision about the running plan."""
    if isinstance(planned, ReplanResult):
        return change_text(planned)
    if isinstance(planned, AddedPlan):
        first = tuple(addition_lines(planned))
    else:
        first = tuple(filter(None, (planned.best, reserved_text(planned.problem))))
    return plan_text(plan, planned.solve_s, planned.comparison, (*first, *latency_lines(planned)))


def answer_json(planned: Planned, kept: str) -> dict[str, Any]:
    """The same as JSON values. `kept`: note that the existing plan.json stays, if there is no new plan."""
    document = plan_json(planned, kept)
    if isinstance(planned, ReplanResult):
        return {**document, "replan": change_json(planned)}
    return {**document, "added": addition_json(planned)} if isinstance(planned, AddedPlan) else document
