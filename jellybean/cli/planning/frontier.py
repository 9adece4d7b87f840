"""Command frontier: cost as a function of accuracy and of load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, checked_folder, checked_picture, example
from jellybean.cli.console import errors, out, print_json, progress, say
from jellybean.cli.exit_status import EXIT_INFEASIBLE
from jellybean.cli.failures import failure
from jellybean.cli.projects import open_any_project
from jellybean.cli.times import command_limit, seconds_within
from jellybean.display.terminal import BAD
from jellybean.errors import InfeasibleError
from jellybean.folders import require_no_link
from jellybean.quantities import RATE, InvalidValueError, parse_quantity

if TYPE_CHECKING:
    from jellybean.frontier import Frontier
    from jellybean_solver import Figure

RANGE_POINTS = 8  # number of rates in FROM..TO
MAX_RATES = 200
PICTURE_S = 1.5  # that drawing the picture takes, with the start of matplotlib

Scales = Callable[[float], Sequence[float]]  # factors on the rates, from the rate of the first source

Pair = Annotated[
    str | None,
    typer.Option(
        metavar="TWO",
        help="A curve of any two of cost, accuracy, latency (p99) and rate: latency,cost; or of energy or carbon "
        "and cost. Within --time-limit (1min); the other targets hold.",
    ),
]
WorkflowName = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Move the accuracy, latency or rate of this workflow or site alone along the curve; by default of all, "
        "by one target or one factor. May be repeated.",
    ),
]
Points = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=50,
        help="Points of a curve of --of (7), and of one of plans that mix variants (15; 7 with a p99 target).",
    ),
]
Rates = Annotated[
    str | None,
    typer.Option(
        metavar="RATES",
        help="Also compute cost by rate: requests per second of the first source (10,20,40 or 10..80), or "
        "multiples of the documents' rates (0.5x,1x,2x or 0.5x..3x). All sources are scaled together, or those of "
        "--workflow.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Picture (.svg, .png, .pdf); DIR/frontier.svg by default, none with --json."),
]
Narrow = Annotated[bool, typer.Option("--narrow", help="Picture for a phone, with the key below the plot.")]
PlanFolder = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the plan of each point to this folder.")]
Step = Annotated[
    float, typer.Option(min=0, help="Smallest increase in accuracy between two points, in percentage points.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        parser=seconds_within(0.01),
        metavar="TIME",
        help="Seconds of the whole command, or a time such as 2min; points keep the best plans found by then, with "
        "their gaps. With --of, and for plans that mix variants, by default 1min.",
    ),
]


@app.command(
    epilog=example(
        "jellybean frontier my-vqa",
        "jellybean frontier my-vqa --rates 10,20,40 --plot curve.png",
        "jellybean frontier my-vqa --rates 0.5x..3x --set slo.accuracy=57 --json",
        "jellybean frontier my-vqa --step 0.5 --plans plans/",
        "jellybean frontier my-vqa --of latency,cost --plot latency.png",
        "jellybean frontier my-vqa --set 'slo.accuracy={mean: 57}' --points 25",
        "jellybean frontier my-vqa --of accuracy,rate --points 5 --time-limit 2min",
    )
)
def frontier(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    stale: Stale = False,
    of: Pair = None,
    workflow: WorkflowName = None,
    points: Points = None,
    rates: Rates = None,
    plot: Plot = None,
    narrow: Narrow = False,
    plans: PlanFolder = None,
    step: Step = 0.0,
    time_limit: TimeLimit = None,
) -> None:
    """Compute the Pareto frontier of cost and accuracy, with the cheapest plan of each point; writes a picture.

    With `--of` that of two other figures.
    """
    if not math.isfinite(step):
        raise typer.BadParameter(f"--step {step} must be finite, e.g. --step 0.5")
    scales = None if rates is None else parse_rates(rates)
    path = checked_picture(plot) if plot is not None else None if json else directory / "frontier.svg"
    if path is not None and plot is None:
        require_no_link(path)
    if plans is not None:
        checked_folder("--plans", plans)
    pair = None if of is None else parse_pair(of)
    if pair is not None and (rates is not None or step):
        raise typer.BadParameter("--of is a curve of its own: without --rates and --step")
    project = open_any_project(directory, overrides, stale=stale, shows_times=True)
    from jellybean.frontier import LIMIT_S, POINTS, find_frontier, pair_curve

    pair_s = LIMIT_S if time_limit is None else time_limit
    with (
        progress("frontier") as advance,
        command_limit(time_limit if pair is None else pair_s, most_finish_s=PICTURE_S),
    ):
        if pair is not None:
            result = pair_curve(
                project, *pair, limit_s=pair_s, points=points or POINTS, workflows=workflow or (), progress=advance
            )
        else:
            result = find_frontier(
                project, rates=scales, step=step, points=points, workflows=workflow or (), progress=advance
            )
    _write(result, json=json, plans=plans, path=path, narrow=narrow)


def _write(result: Frontier, *, json: bool, plans: Path | None, path: Path | None, narrow: bool) -> None:
    """Write the curves as the options say. Exit with EXIT_INFEASIBLE if they have no plan."""
    from jellybean.frontier import frontier_text, save_plans, save_plot, to_json

    points = [point for curve in result.curves for point in curve.points]
    is_empty = all(point.plan is None for point in points)
    reasons = result.curve.ended or next((point.reasons for point in points), ())
    if json:
        print_json({**to_json(result), **(failure(InfeasibleError(reasons)) if is_empty else {})})
    else:
        out.print(frontier_text(result))
    if is_empty:
        for reason in reasons:
            errors.print(f"  - {reason}", style=BAD)
        raise typer.Exit(EXIT_INFEASIBLE)
    if plans is not None:
        say(f"wrote {len(save_plans(result, plans))} plans to {plans}")
    if path is not None:
        save_plot(result, path, narrow=narrow)
        say(f"wrote {path}")


def parse_pair(text: str) -> tuple[Figure, Figure]:
    """Parse `--of` to two figures."""
    from jellybean_solver import Figure

    names = [part.strip() for part in text.split(",")]
    if len(names) != 2 or len({*names}) != 2 or not {*names} <= {*Figure}:
        raise typer.BadParameter(f"--of {text!r}: write two of {', '.join(Figure)}, for example latency,cost")
    if {*names} & {Figure.ENERGY, Figure.CARBON} and Figure.COST not in names:
        raise typer.BadParameter(
            f"--of {text!r}: energy and carbon have curves with cost: write for example energy,cost"
        )
    return Figure(names[0]), Figure(names[1])


def parse_rates(text: str) -> Scales:
    """Parse `--rates` to a function from the rate of the first source to factors on it; BadParameter if invalid."""
    items = [part.strip() for part in text.split(",")]
    rates = [item for part in items for item in _expand_range(part, text)]
    if len(rates) > MAX_RATES:
        raise typer.BadParameter(f"--rates gives {len(rates)} rates; the limit is {MAX_RATES}")

    def scales(first: float) -> Sequence[float]:
        return [value if multiple else value / first for value, multiple in rates]

    return scales


def _expand_range(part: str, text: str) -> list[tuple[float, bool]]:
    if ".." not in part:
        return [_rate(part, text)]
    ends = part.split("..")
    if len(ends) != 2:
        raise _bad_rates(text)
    (low, multiple), (high, other) = (_rate(end.strip(), text) for end in ends)
    if multiple != other:
        raise typer.BadParameter(f"--rates {part!r} mixes a rate and a multiple; write 10..80 or 0.5x..3x")
    if not low < high:
        raise typer.BadParameter(f"--rates {part!r}: the first rate must be below the second")
    step = (high - low) / (RANGE_POINTS - 1)
    return [(low + index * step if index < RANGE_POINTS - 1 else high, multiple) for index in range(RANGE_POINTS)]


def _rate(item: str, text: str) -> tuple[float, bool]:
    """Parse one rate of `--rates` to (number, is it a factor): (10.0, False) for 10 or 10/s, (2.0, True) for 2x."""
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
