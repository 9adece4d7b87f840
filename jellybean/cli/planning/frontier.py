"""frontier: what accuracy and load cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, app, example, folder, picture
from jellybean.cli.console import EXIT_INFEASIBLE, errors, out, print_json, progress, say
from jellybean.cli.failures import failure
from jellybean.documents import load_project
from jellybean.errors import InfeasibleError
from jellybean.quantities import RATE, InvalidValueError, parse_quantity
from jellybean_solver import Problem

RANGE_POINTS = 8  # rates that FROM..TO stands for
MOST_RATES = 200

Scales = Callable[[Problem], Sequence[float]]


@app.command(
    epilog=example(
        "jellybean frontier my-vqa",
        "jellybean frontier my-vqa --rates 10,20,40 --plot curve.png",
        "jellybean frontier my-vqa --rates 0.5x..3x --set slo.accuracy=57 --json",
        "jellybean frontier my-vqa --step 0.5 --plans plans/",
    )
)
def frontier(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="RATES",
            help="Cost by rate too: requests per second of the first source (10,20,40 or 10..80) or multiples of the "
            "documents' rates (0.5x,1x,2x or 0.5x..3x). All sources grow together.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Picture (.svg, .png, .pdf); DIR/frontier.svg by default, none with --json."),
    ] = None,
    plans: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the plan of every point here.")] = None,
    step: Annotated[
        float, typer.Option(min=0, help="Skip corners that are not so many points more accurate than the one before.")
    ] = 0.0,
    time_limit: Annotated[
        float | None, typer.Option(min=0.01, help="Seconds per plan; the best so far is kept, with its gap.")
    ] = None,
) -> None:
    """Find every accuracy that is worth its price, with the cheapest plan for it; writes a picture."""
    from jellybean.frontier import find_frontier, frontier_text, save_plans, save_plot, to_json

    if not math.isfinite(step):
        raise typer.BadParameter(f"--step {step} must be finite, e.g. --step 0.5")
    scales = None if rates is None else parse_rates(rates)
    path = picture(plot) if plot is not None else None if json else directory / "frontier.svg"
    if plans is not None:
        folder("--plans", plans)
    project = load_project(directory, overrides or ())
    with progress("frontier") as advance:
        found = find_frontier(project, rates=scales, step=step, time_limit_s=time_limit, progress=advance)
    empty = not found.accuracy.corners and (found.rates is None or found.rates.highest_scale is None)
    if json:
        print_json({**to_json(found), **(failure(InfeasibleError(found.accuracy.ended)) if empty else {})})
    else:
        out.print(frontier_text(found))
    if empty:
        for reason in found.accuracy.ended:
            errors.print(f"  - {reason}", style="red")
        raise typer.Exit(EXIT_INFEASIBLE)
    if plans is not None:
        say(f"wrote {len(save_plans(found, plans))} plans to {plans}")
    if path is not None:
        save_plot(found, path)
        say(f"wrote {path}")


def parse_rates(text: str) -> Scales:
    """What --rates asks for, as factors on a problem's rates. Refused before the documents are read."""
    items = [part.strip() for part in text.split(",")]
    wanted = [item for part in items for item in _expanded(part, text)]
    if len(wanted) > MOST_RATES:
        raise typer.BadParameter(f"--rates asks for {len(wanted)} rates; at most {MOST_RATES} are drawn")

    def scales(problem: Problem) -> Sequence[float]:
        first = problem.sources[0].rate_per_s
        return [value if multiple else value / first for value, multiple in wanted]

    return scales


def _expanded(part: str, text: str) -> list[tuple[float, bool]]:
    if ".." not in part:
        return [_rate(part, text)]
    ends = part.split("..")
    if len(ends) != 2:
        raise _bad_rates(text)
    (low, multiple), (high, other) = (_rate(end.strip(), text) for end in ends)
    if multiple != other:
        raise typer.BadParameter(f"--rates {part!r} goes from a rate to a multiple; write 10..80 or 0.5x..3x")
    if not low < high:
        raise typer.BadParameter(f"--rates {part!r}: the first rate must be below the second")
    step = (high - low) / (RANGE_POINTS - 1)
    return [(low + index * step if index < RANGE_POINTS - 1 else high, multiple) for index in range(RANGE_POINTS)]


def _rate(item: str, text: str) -> tuple[float, bool]:
    """(10.0, False) for 10 or 10/s, (2.0, True) for 2x."""
    multiple = item.endswith("x")
    try:
        value = float(item.removesuffix("x")) if multiple or "/" not in item else parse_quantity(RATE, item)
    except (ValueError, InvalidValueError) as error:
        raise _bad_rates(text) from error
    if not math.isfinite(value) or value <= 0:
        raise typer.BadParameter(f"--rates {item!r} must be a finite rate above 0")
    return value, multiple


def _bad_rates(text: str) -> typer.BadParameter:
    return typer.BadParameter(f"--rates {text!r}: write for example 10,20,40 or 10..80 or 0.5x,1x,2x")
