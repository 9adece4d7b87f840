"""`plan --from PLAN`: keep the running plan, or replace it if that saves enough after migration costs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from jellybean.cli.console import out, print_json, progress, say, warn
from jellybean.cli.planning.plan_json import plan_json
from jellybean.cli.planning.plan_output import PlanOutput, refuse
from jellybean.documents import AnyProject
from jellybean.planning.plan_file import PLAN_FILE, current_hash, kept_plan, write_plan
from jellybean.quantities import DURATION, InvalidValueError, parse_quantity
from jellybean_solver import Verdict


def run_replan(
    project: AnyProject,
    named: str,
    output: PlanOutput,
    *,
    horizon_h: float,
    gap: float | None,
    json: bool,
) -> None:
    """Decide, print and write the plan; typer.Exit(3) if neither the running plan nor any other meets the targets."""
    from jellybean.planning.replan import replan_project
    from jellybean.report.plans.replan_view import change_json, change_text

    directory = project.directory
    with progress("plan") as advance:
        change = replan_project(project, named, horizon_h=horizon_h, gap=gap, progress=advance)
    document, planned = change.result, change.planned
    is_new, served, before = change.decision.verdict is Verdict.REPLACE, "", current_hash(directory)
    if document is not None:
        served = output.save(
            project, document, planned if is_new else None, partial(write_plan, project, document, planned.problem)
        )
    if json:
        kept = kept_plan(directory, outdated=True) if document is None else ""
        hash_entry = {} if document is None else {"hash": document["hash"]}
        print_json({**plan_json(planned, kept), **hash_entry, "replan": change_json(change)})
    elif document is not None:
        out.print(change_text(change))
    for note in (*change.notes, *filter(None, [served])):
        warn(note)
    if document is None:
        refuse(planned, directory)
    if not is_new and not output.is_what_if:
        say(_kept_text(directory / PLAN_FILE, before, document["hash"]))
    elif planned.plan is not None:
        output.say_written(planned.plan)


def _kept_text(path: Path, before: str | None, kept: str) -> str:
    """What keeping a plan did to the plan file. `before`: the hash of the plan that it had; None: of none."""
    if before == kept:
        return f"{path} is unchanged"
    other = "" if before is None else f"; it had another one, {before[:12]}"
    return f"wrote {path}: the plan that is kept, {kept[:12]}{other}"


def horizon_hours(text: str) -> float:
    """Parse --horizon to hours; BadParameter unless it is a positive duration."""
    try:
        hours = parse_quantity(DURATION, text) / 3600.0
    except InvalidValueError as error:
        raise typer.BadParameter(f"--horizon: {error.message}; write for example 24h or 7d") from error
    if hours <= 0:
        raise typer.BadParameter(f"--horizon {text}: write a time above 0, for example 24h")
    return hours
