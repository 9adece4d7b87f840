"""`plan --add`: plan the workflows or sites that a plan lacks; the others keep their workers and routes."""

from __future__ import annotations

from jellybean.cli.console import out, print_json, progress, warn
from jellybean.cli.planning.plan_json import plan_json
from jellybean.cli.planning.plan_latency import latency_lines
from jellybean.cli.planning.plan_output import PlanOutput, refuse
from jellybean.documents import AnyProject
from jellybean.planning.plan_file import kept_plan, save_plan
from jellybean.report import plan_text
from jellybean_solver import to_document


def run_add(
    project: AnyProject,
    named: str,
    output: PlanOutput,
    *,
    gap: float | None,
    json: bool,
) -> None:
    """Plan what is new, print and write the plan of all; typer.Exit(3) if it does not fit beside what stays."""
    from jellybean.planning.add import add_to_plan
    from jellybean.report.plans.addition_view import addition_json, addition_lines

    directory, served = project.directory, ""
    with progress("plan") as advance:
        result = add_to_plan(project, named, gap=gap, progress=advance)
    planned = result.planned
    if planned.plan is not None:
        served = output.save(project, to_document(planned.plan), planned, lambda: save_plan(project, planned))
    if json:
        print_json({**plan_json(planned, kept_plan(directory, outdated=True)), "added": addition_json(result)})
    elif planned.plan is not None:
        lines = (*addition_lines(result), *latency_lines(planned))
        out.print(plan_text(planned.plan, planned.solve_s, (), lines))
        output.say_written(planned.plan)
    notes = () if planned.plan is None else result.unstartable
    for note in (*notes, *filter(None, [served])):
        warn(note)
    if planned.plan is None:
        refuse(planned, directory)
