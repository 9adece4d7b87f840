"""Command calendar: plans by time, for rates that change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, checked_folder, checked_picture, example
from jellybean.cli.console import out, print_json, progress, say, warn
from jellybean.cli.projects import open_any_project
from jellybean.cli.times import TimeLimit, command_limit

PERIODS = 24


@app.command(
    epilog=example(
        "jellybean calendar my-digits my-digits/traces/day.csv",
        "jellybean calendar my-digits day.csv --periods 6 --plans plans/ --plot day.svg",
        "jellybean calendar my-digits launch.csv --once --json",
    )
)
def calendar(
    directory: Directory,
    trace: Annotated[
        Path, typer.Argument(help="Rates by time (CSV: time_s,source,rate_per_s), such as those of a day.")
    ],
    overrides: Overrides = None,
    json: Json = False,
    stale: Stale = False,
    periods: Annotated[
        int, typer.Option(min=1, max=288, help="Most periods; neighbours whose rates differ the least are merged.")
    ] = PERIODS,
    once: Annotated[bool, typer.Option("--once", help="The trace does not begin anew when it ends.")] = False,
    plans: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the plan of each period to this folder.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture (.svg, .png, .pdf).")] = None,
    time_limit: TimeLimit = None,
) -> None:
    """Plan for rates that change with time: a plan for each period, where changing to it pays."""
    from jellybean.whatif import plan_by_time

    if plot is not None:
        checked_picture(plot)
    if plans is not None:
        checked_folder("--plans", plans)
    project = open_any_project(directory, overrides, stale=stale, shows_times=True)
    with progress("calendar") as advance, command_limit(time_limit):
        found = plan_by_time(project, trace, most=periods, repeats=not once, progress=advance)
    if found.unplanned:
        warn(
            f"the time limit ended before {found.unplanned} of {found.wanted_plans} sets of rates had a plan of "
            "their own: they have one that was made for others, and there is no lower bound on the cost"
        )
    if json:
        print_json(found.json())
    else:
        out.print(found.text())
    if plans is not None:
        say(f"wrote {found.save_plans(plans)} plans to {plans}")
    if plot is not None:
        found.save_picture(plot)
        say(f"wrote {plot}")
    if not json:
        command = found.command(found.periods[0])
        say(f"to change to a plan at its time: {command}  (--json has the command of each period)")
