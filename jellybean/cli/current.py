"""The plan that a command about a plan works with."""

from __future__ import annotations

from jellybean.cli.console import warn
from jellybean.documents import AnyProject
from jellybean.planning import current_plan
from jellybean.records import record_plan
from jellybean_solver.plan import Plan
from jellybean_solver.plan_document import to_document


def plan_of(project: AnyProject) -> Plan:
    """DIR/plan.json, or the plan that took its place, which is then said."""
    plan, renewed = current_plan(project)
    tell_renewed(project, plan, renewed)
    return plan


def tell_renewed(project: AnyProject, plan: Plan, renewed: str) -> None:
    """Say why the plan was made anew, if it was; it is then the newest in the report store too."""
    if renewed:
        warn(renewed)
        record_plan(project.directory, to_document(plan))
