"""Draw the curves, each with its table as a key."""

from __future__ import annotations

import io
import re
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console

from jellybean.display.pictures import (
    BAD,
    INK,
    LIMIT,
    LINE,
    SERIES,
    SOFT,
    STYLE,
    SURFACE,
    bare,
    label_above,
    label_beside,
    load_matplotlib,
    require_picture,
    save_figure,
)
from jellybean.errors import JellyBeanError
from jellybean.frontier.find import Frontier
from jellybean.frontier.view import LEAST_GAP, TEXTS, curve_table, figure_name, proof_text, title_text
from jellybean_solver import Curve, CurvePoint, Figure

MAX_LINES = 60  # of a key
LINE_INCHES, KEY_INCHES = 0.14, 1.2  # height of a line of a key, and of what is above and below it
RIGHT = 0.95  # part of the width up to which plots and keys reach: labels above a plot may reach further
PLOT_INCHES, WIDE, NARROW = 4.6, (11.5, 72), (4.06, 54)  # inches, characters of a key
TITLE_PER_INCH = 9  # characters
NEAR = 1.6  # times the largest value of a curve up to which a stated value is drawn
CURVE, SINGLE = SERIES[:2]
UNITS = {
    Figure.COST: "USD/h",
    Figure.ACCURACY: "%",
    Figure.LATENCY: "p99, s",
    Figure.RATE: "1/s, all sources alike",
    Figure.ENERGY: "W",
    Figure.CARBON: "g/h",
}
STATED = {Figure.COST: "budget", Figure.RATE: "now", Figure.ENERGY: "limit", Figure.CARBON: "limit"}

Spot = tuple[float, float, CurvePoint]  # both figures


def save_plot(frontier: Frontier, path: Path, *, narrow: bool = False) -> None:
    """Draw the curves, each beside its key, or for a phone above it (`narrow`).

    JellyBeanError for a format other than .svg, .png and .pdf, or if no plan was found.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure as Picture

    width, characters = NARROW if narrow else WIDE
    panels = [(curve, _key_text(frontier, curve, characters)) for curve in frontier.curves if _spots(curve)]
    if not panels:
        raise JellyBeanError(f"{path}: no plan to draw")
    keys = [KEY_INCHES + LINE_INCHES * text.count("\n") for _, text in panels]
    heights = [inches for key in keys for inches in ((PLOT_INCHES, key) if narrow else (max(PLOT_INCHES, key),))]
    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(width, sum(heights)), facecolor=SURFACE)
        picture.set_layout_engine("constrained", rect=(0, 0, RIGHT, 1))
        grid = {"height_ratios": heights, "width_ratios": (1,) if narrow else (1.45, 1), "hspace": 0.06}
        frames = picture.subplots(len(heights), 1 if narrow else 2, squeeze=False, gridspec_kw=grid).ravel()
        labels = []
        for (curve, _), axes, key in zip(panels, frames[::2], frames[1::2], strict=True):
            title = f"{frontier.moved.problem.name}: {title_text(frontier, curve)} ({proof_text(curve)})"
            lines = textwrap.fill(title, TITLE_PER_INCH * int(width))
            axes.set_title(lines, loc="left", fontsize=10, fontweight="bold", pad=26)
            labels.append(_draw(frontier, curve, axes))
            key.set_axis_off()
        picture.draw_without_rendering()
        picture.set_layout_engine("none")  # the places of points and keys are final now
        for (_, text), above, axes, key in zip(panels, labels, frames[::2], frames[1::2], strict=True):
            label_above(axes, above)
            key.text(0, 1, text, va="top", family="monospace", fontsize=7, linespacing=1.3)
        save_figure(picture, path)


def _spots(curve: Curve) -> list[Spot]:
    """The points of which both figures are known."""
    return [
        (point.figures[curve.x], point.figures[curve.y], point)
        for point in curve.points
        if {curve.x, curve.y} <= {*point.figures}
    ]


def _draw(frontier: Frontier, curve: Curve, axes: Any) -> list[tuple[float, str]]:
    """Draw a curve; returns what is to be said above the frame: x and text."""
    labels = []
    spots, current = _spots(curve), frontier.current if curve is frontier.curve else None
    xs, ys, _ = map(list, zip(*spots, strict=True))
    if current is not None:
        xs, ys = [*xs, current.accuracy], [*ys, current.cost_usd_per_h]
        axes.plot(xs[-1], ys[-1], "D", ms=13, mfc="none", mec=SOFT, mew=1.8, zorder=4)
    if (stated := frontier.stated(curve.x)) is not None:
        xs.append(stated)
        axes.axvline(stated, **LIMIT)
        labels.append((stated, f"{STATED.get(curve.x, 'SLO')} {TEXTS[curve.x](stated)}"))
    if (limit := frontier.stated(curve.y)) is not None and limit < NEAR * max(ys):
        ys.append(limit)
        axes.axhline(limit, **LIMIT)
        label_beside(axes, limit, f"{STATED.get(curve.y, 'SLO')}\n{TEXTS[curve.y](limit)}")
    span = max(xs) - min(xs) or 1.0
    low, high = min(xs) - 0.09 * span, max(xs) + 0.07 * span
    xlabel, ylabel = (f"{figure_name(frontier, figure)} ({UNITS[figure]})" for figure in (curve.x, curve.y))
    axes.set(xlim=(low, high), ylim=(0, 1.14 * max(ys) or 1.0), xlabel=xlabel, ylabel=ylabel)
    if frontier.single is not None and curve is frontier.curve:
        _draw_line(axes, frontier.single, low, SINGLE)
    _draw_line(axes, curve, low, CURVE)
    for x, y, point in spots:
        color = BAD if point.breaches else INK if point is frontier.chosen else CURVE
        axes.plot(x, y, "o", ms=6, mfc=SURFACE if point.breaches else color, mec=color, mew=1.6, zorder=5)
    if curve.ended:
        end = spots[-1][0]
        axes.axvspan(end, high, color=LINE, alpha=0.45, linewidth=0, zorder=0)
        labels.append(((end + high) / 2.0, "no plan" if curve.finished else "unknown"))
    bare(axes)
    return labels


def _draw_line(axes: Any, curve: Curve, low: float, color: str) -> None:
    """What the best known plans cost, dotted between points that say nothing of it; shaded down to the lower bounds.

    A plan for an accuracy does for all lower ones.
    """
    before: Spot | None = None
    for x, y, point in _spots(curve):
        start = left = max(low, min(point.start, x))
        bound = other = point.bound_usd_per_h
        if before is not None:
            left = before[0] if curve.x is Figure.ACCURACY else x
            other = before[2].bound_usd_per_h if left < start else bound
            style = "-" if left == before[0] else ":"
            axes.plot([before[0], left], [before[1], y], style, color=color, linewidth=1, zorder=3)
        axes.plot([left, x], [y, y], color=color, linewidth=2, zorder=3)
        if curve.y is Figure.COST:
            bounds, width = [other, other, bound, bound], 5 * (left == x)
            axes.fill_between([left, start, start, x], bounds, y, color=color, alpha=0.13, linewidth=width)
        before = x, y, point


def _key_text(frontier: Frontier, curve: Curve, characters: int) -> str:
    """The table of the terminal, and what the signs mean."""
    file, first = io.StringIO(), curve is frontier.curve
    Console(file=file, width=characters, color_system=None).print(curve_table(frontier, curve))
    lines = file.getvalue().splitlines()
    signs = {
        "◇ current plan": first and frontier.current is not None,
        "orange: one selection for all requests": first and frontier.single is not None,
        "shaded: where the lowest cost may lie": curve.y is Figure.COST and curve.gap > LEAST_GAP,
    }
    lines[MAX_LINES:] = ["…"] if len(lines) > MAX_LINES else []
    lines += ["", *(sign for sign, is_drawn in signs.items() if is_drawn)]
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub("  +", lambda spaces: "\u00a0" * len(spaces[0]), text)  # SVG makes one space of several
