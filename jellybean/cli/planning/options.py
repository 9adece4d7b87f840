"""The options of `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.quantities import DURATION, InvalidValueError, parse_quantity
from jellybean_solver import DEFAULT_GAP

DEFAULT_HORIZON = "24h"

Gap = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help=f"Stop at this relative optimality gap; default: 0; for large fleets or a p99: {DEFAULT_GAP:g}.",
    ),
]
RateScale = Annotated[float, typer.Option(min=0.001, max=1000, help="Plan for all sources' rates times this.")]
CheckTrace = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="Instead of planning, replay a rate trace (CSV: time_s,source,rate_per_s) over the current plan; exit "
        "status 6 if a target would be missed.",
    ),
]
ReplayPlot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --check: picture of the replay (.svg, .png, .pdf).")
]
ReplaySeed = Annotated[int, typer.Option(min=0, help="With --check: random seed.")]
RunningPlan = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLAN",
        help="Change this plan (a plan file, a project, or the word running) only if that saves enough after "
        "migration costs; otherwise keep it.",
    ),
]
Add = Annotated[
    bool,
    typer.Option(
        "--add",
        help="Plan only the workflows or sites that the --from plan (default: plan.json) lacks or that have changed; "
        "the others keep their workers and routes.",
    ),
]
Horizon = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"With --from: time over which costs are compared ({DEFAULT_HORIZON})."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="What if: print the plan, write nothing.")]
OtherFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="What if: write the plan to this file, not plan.json.")
]


def horizon_hours(text: str) -> float:
    """Parse --horizon to hours; BadParameter unless it is a positive duration."""
    try:
        hours = parse_quantity(DURATION, text) / 3600.0
    except InvalidValueError as error:
        raise typer.BadParameter(f"--horizon: {error.message}; write for example 24h or 7d") from error
    if hours <= 0:
        raise typer.BadParameter(f"--horizon {text}: write a time above 0, for example 24h")
    return hours
