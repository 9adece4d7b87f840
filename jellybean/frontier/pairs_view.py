"""A curve of two figures as a table, as JSON, as a picture, and as files with its plans."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.pictures import INK, SERIES, STYLE, SURFACE, bare, load_matplotlib, require_picture, save_figure
from jellybean.display.terminal import BAD, WARN
from jellybean.documents import override_options
from jellybean.errors import JellyBeanError
from jellybean.folders import shell_text, write_output
from jellybean.frontier.changes import changes
from jellybean.frontier.pairs import Figure, PairCurve, PairPoint
from jellybean_solver import Plan, to_document

MOST_SAID = 160  # characters of why there is no plan; --json has all
HEADINGS = {
    Figure.COST: "USD/h",
    Figure.ACCURACY: "accuracy",
    Figure.LATENCY: "p99 latency",
    Figure.RATE: "rate",
}
BEST = {Figure.COST: "lowest", Figure.LATENCY: "least", Figure.RATE: "highest"}  # what plans are the best in
LABELS = {
    Figure.COST: "USD per hour",
    Figure.ACCURACY: "accuracy (%)",
    Figure.LATENCY: "p99 latency (ms)",
    Figure.RATE: "requests of the first source per second",
}


def pairs_text(curve: PairCurve) -> RenderableType:
    """A row for each point, with what changes from the one before."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    known = {figure for point in curve.points for figure, value in point.figures.items() if value is not None}
    shown = (curve.x, curve.y, *(one for one in Figure if one not in (curve.x, curve.y) and one in known))
    for figure in shown:
        table.add_column(HEADINGS[figure], justify="right", no_wrap=True)
    table.add_column("changes", overflow="fold")
    before: Plan | None = None
    for point in curve.points:
        if point.plan is None:
            why = "no plan: " if point.finished else "not known: "
            said = textwrap.shorten("; ".join(point.reasons), MOST_SAID, placeholder=" …")
            table.add_row(figure_text(curve.x, point.fixed), *[""] * (len(shown) - 1), Text(why + said, BAD))
            continue
        changed = "\n".join(str(change) for change in changes(before, point.plan) if before is None or change)
        table.add_row(*(figure_text(figure, point.figures[figure]) for figure in shown), changed or "only rates")
        before = point.plan
    parts: list[RenderableType] = [_headline(curve), Padding(table, (0, 0, 0, 2), expand=False)]
    last = next((point for point in reversed(curve.points) if point.plan is not None), None)
    if last is not None:
        command = f"jellybean plan {shell_text(curve.project.directory)}{override_options(last.options)}"
        again = f"the last plan again: {command}"
        parts.append(Padding(Text(again, "dim"), (0, 0, 0, 2), expand=False))
    parts += (Padding(Text(note, WARN), (0, 0, 0, 2), expand=False) for note in curve.notes)
    return Group(*parts)


def _headline(curve: PairCurve) -> Text:
    found = sum(point.plan is not None for point in curve.points)
    return Text.assemble(
        (curve.name, "bold"),
        f": {BEST[curve.y]} {curve.y} by {curve.x}{curve.of}, ",
        f"{formats.count(found, 'plan')} in {curve.elapsed_s:.0f} s",
    )


def figure_text(figure: Figure, value: float | None) -> str:
    """A value of a figure for a person."""
    if value is None:
        return ""
    if figure is Figure.COST:
        return formats.usd(value)
    if figure is Figure.ACCURACY:
        return formats.accuracy(value)
    return formats.duration(value) if figure is Figure.LATENCY else formats.rate(value)


def pairs_json(curve: PairCurve) -> Mapping[str, Any]:
    """The same as JSON values; plans are given by hash, selection and options."""
    return {
        "name": curve.name,
        "x": curve.x.value,
        "y": curve.y.value,
        "points": [_point_json(point) for point in curve.points],
        **({"of": curve.of.strip()} if curve.of else {}),
        **({"notes": list(curve.notes)} if curve.notes else {}),
        "elapsed_s": curve.elapsed_s,
    }


def _point_json(point: PairPoint) -> Mapping[str, Any]:
    plan = point.plan
    return {
        "fixed": point.fixed,
        "feasible": plan is not None if point.finished else None,
        **{figure.value: value for figure, value in point.figures.items()},
        "certificate": None if plan is None else {"bound": plan.certificate.bound, "gap": plan.certificate.gap},
        "hash": None if plan is None else to_document(plan)["hash"],
        "selection": {} if plan is None else dict(plan.selection),
        "options": list(point.options),
        "reasons": list(point.reasons),
    }


def save_pairs(curve: PairCurve, folder: Path) -> int:
    """Write the plan of each point as HASH.json; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [to_document(point.plan) for point in curve.points if point.plan is not None]
    for document in documents:
        path = folder / f"{str(document['hash'])[:12]}.json"
        write_output(path, json.dumps(document, indent=1) + "\n")
    return len(documents)


def save_pairs_plot(curve: PairCurve, path: Path) -> None:
    """Draw the points, joined by a dotted line, as nothing is known between them. JellyBeanError if there is none."""
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure as Picture

    found = [point for point in curve.points if None not in (point.figures.get(curve.x), point.figures.get(curve.y))]
    if not found:
        raise JellyBeanError(f"{path}: no plan to draw")
    xs, ys = ([_drawn(figure, point.figures[figure]) for point in found] for figure in (curve.x, curve.y))
    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(8.0, 4.6), facecolor=SURFACE, layout="constrained")
        axes = picture.subplots()
        axes.plot(xs, ys, "o:", color=SERIES[0], linewidth=1.4, ms=6)
        for x, y, point in zip(xs, ys, found, strict=True):
            text = figure_text(curve.y, point.figures[curve.y])
            axes.annotate(text, (x, y), xytext=(6, 6), textcoords="offset points", ha="left", fontsize=8, color=INK)
        axes.set_xlabel(f"{LABELS[curve.x]}{curve.of}")
        axes.set_ylabel(LABELS[curve.y])
        axes.set_ylim(0, 1.18 * max(ys) or 1.0)
        axes.margins(x=0.08)
        title = f"{curve.name}: {BEST[curve.y]} {curve.y} by {curve.x}, of the plans found"
        axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold")
        bare(axes)
        save_figure(picture, path)


def _drawn(figure: Figure, value: float | None) -> float:
    return 1e3 * (value or 0.0) if figure is Figure.LATENCY else value or 0.0
