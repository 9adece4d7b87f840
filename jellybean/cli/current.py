"""The plan that a command about a plan works with."""

from __future__ import annotations

from pathlib import Path

from jellybean.cli.app import repeated
from jellybean.cli.console import warn
from jellybean.documents import AnyProject
from jellybean.planning.project_plan import current_plan
from jellybean.report.records import record_plan
from jellybean.serving.errors import NotRunningError
from jellybean.serving.run_state import running_state
from jellybean_solver import Plan, to_document


def what_next(directory: Path, plan: Plan, overrides: list[str] | None) -> str:
    """The commands that a new plan is made for, ready to copy: what is up already takes it over."""
    again = f"{directory}{repeated(overrides)}"
    after = "apply" if _is_up(directory) else "up"
    if plan.workflows or without_model(plan):  # planned, not served
        after = "explain"
    return f"jellybean simulate {again}, jellybean {after} {again}"


def _is_up(directory: Path) -> bool:
    """Whether a plan of the project is served right now."""
    try:
        running_state(directory.resolve())
    except NotRunningError:
        return False
    return True


def without_model(plan: Plan) -> tuple[str, ...]:
    """Operators, with their variants, that no model file is given for."""
    return tuple(f"{operator.name}/{operator.variant}" for operator in plan.operators if operator.model is None)


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
