"""Command explain: why the plan is optimal, or why no plan exists."""

from __future__ import annotations

from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import print_json, print_texts, progress, warn
from jellybean.cli.exit_status import EXIT_INFEASIBLE
from jellybean.cli.failures import failure
from jellybean.cli.projects import open_any_project
from jellybean.cli.times import command_limit, seconds_within
from jellybean.errors import InfeasibleError
from jellybean.planning.explain import Explained, explain_project
from jellybean_solver import Part


@app.command(
    epilog=example(
        "jellybean explain my-vqa",
        "jellybean explain my-vqa --why-not image_features=resnet50 --why-not cloud --why-not answer@edge",
        "jellybean explain my-vqa --set slo.accuracy=58.9",
        "jellybean explain my-vqa --json --time-limit 60",
    )
)
def explain(
    directory: Directory,
    overrides: Overrides = None,
    questions: Annotated[
        list[str] | None,
        typer.Option(
            "--why-not",
            metavar="QUESTION",
            help="Why not OPERATOR=VARIANT, a TIER or POOL, or OPERATOR@TIER (or @POOL)? May be repeated.",
        ),
    ] = None,
    json: Json = False,
    stale: Stale = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            parser=seconds_within(0.1),
            metavar="TIME",
            help="Total seconds, or a time such as 2min; questions that are not answered in time are listed.",
        ),
    ] = None,
) -> None:
    """Explain the plan: binding requirements, alternatives, and the value of relaxing each requirement.

    Every figure is the optimum of a modified problem. Parts are printed as they are found, the most valuable first:
    Ctrl-C keeps them. If no plan meets the targets: why, which requirements conflict, and how far each of them would
    have to be relaxed on its own. Writes no files.
    """
    from jellybean.report.explanation.view import closing_text, part_text

    project = open_any_project(directory, overrides, stale=stale, shows_times=True)
    with progress("explain", shows_time_left=False) as advance:

        def show(found: Explained, part: Part) -> None:
            if not json and (lines := part_text(found, part)):
                advance.print(*lines)

        with command_limit(time_limit):
            explained = explain_project(
                project, overrides or (), questions or (), time_limit_s=time_limit, progress=advance, publish=show
            )
    explanation = explained.explanation
    if json:
        failed = failure(InfeasibleError((explanation.conflict.reason,))) if explanation.conflict is not None else {}
        print_json({**explained.to_dict(), **failed})
    else:  # the parts are printed already
        print_texts(*closing_text(explained))
        if questions and explanation.conflict is not None:
            warn("--why-not was ignored: there is no plan to compare with")
    if explanation.conflict is not None:
        raise typer.Exit(EXIT_INFEASIBLE)
