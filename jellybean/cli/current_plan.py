"""The current plan of a project, and hints about the next commands."""

from __future__ import annotations

import shlex
from pathlib import Path

from jellybean.cli.console import said_if_long, warn
from jellybean.documents import AnyProject
from jellybean.planning.plan_file import current_plan, plan_options
from jellybean.report.records import record_plan
from jellybean.serving.allowed_python import options_for_plan
from jellybean.serving.errors import NotRunningError
from jellybean.serving.run_state import running_state
from jellybean_solver import Plan, independent_streams_text, to_document


def next_commands(directory: Path, plan: Plan) -> str:
    """Text with the next commands after a new plan, ready to copy: `apply` if a plan is served now, otherwise `up`."""
    arguments = f"{shlex.quote(str(directory))}{plan_options(plan)}"
    follow_up, allowed = "apply" if _is_running(directory) else "up", options_for_plan(plan)
    if operators_without_model(plan) or independent_streams_text(plan):  # such a plan cannot be served on this machine
        if plan.mixes or plan.survives:  # nor can `explain` explain it
            return f"jellybean simulate {arguments}"
        follow_up, allowed = "explain", ""
    return f"jellybean simulate {arguments}, jellybean {follow_up} {arguments}{allowed}"


def _is_running(directory: Path) -> bool:
    """True if a plan of the project is being served."""
    try:
        running_state(directory.resolve())
    except NotRunningError:
        return False
    return True


def operators_without_model(plan: Plan) -> tuple[str, ...]:
    """`operator/variant` of operators whose chosen variant has no model."""
    return tuple(f"{operator.name}/{operator.variant}" for operator in plan.variants if operator.model is None)


def load_current_plan(project: AnyProject, *, anew: bool = False, what_if: bool = False) -> Plan:
    """Load DIR/plan.json; with a warning plan again if it does not answer the project's documents, or if `anew`.

    `what_if`: options were given, so a plan that is made again is for this command alone, and no file changes.
    """
    with said_if_long("makes the plan again where plan.json does not answer the documents"):
        plan, renewed = current_plan(project, anew=anew, writes=not what_if)
    warn_if_replanned(project, plan, renewed, what_if=what_if)
    return plan


def warn_if_replanned(project: AnyProject, plan: Plan, renewed: str, *, what_if: bool = False) -> None:
    """If the plan was made again, warn with the reason `renewed`, and unless `what_if` record it in the report store.

    An empty `renewed` means that the plan was not made again.
    """
    if renewed:
        warn(renewed)
    if renewed and not what_if:
        record_plan(project, to_document(plan))
