"""Draw the curves, each with a key: a row for each point, with its figures and what is new in its plan."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from jellybean.frontier.changes import with_changes
from jellybean.frontier.find import Frontier
from jellybean.frontier.view import (
    LEAST_GAP,
    TEXTS,
    figure_name,
    heading,
    proof_text,
    title_text,
    value_text,
)
from jellybean_solver import Curve, CurvePoint, Figure

MAX_ROWS = 20  # of a key; of more points, every second or third
ROW_LINES = 2  # lines of one row
LINE_INCHES = 0.19  # height of a line of a key
PLOT_INCHES, WIDE, NARROW = 4.6, (11.5, 44, 100), (4.06, 38, 42)  # inches, characters of a row's plan and of a title
COLUMNS = ((0.14, "right"), (0.3, "right"), (0.34, "left"))  # of the key: both figures, plan
NEAR = 1.6  # times the largest value of a curve up to which a stated value is drawn
CURVE, SINGLE = SERIES[:2]
UNITS = {Figure.COST: "USD/h", Figure.ACCURACY: "%", Figure.LATENCY: "p99, s", Figure.RATE: "1/s, all sources alike"}
STATED = {Figure.COST: "budget", Figure.RATE: "now"}

Spot = tuple[float, float, CurvePoint]  # both figures
Row = tuple[str, tuple[str, str, str]]  # colour, cells; of a sign all in the first one


def save_plot(frontier: Frontier, path: Path, *, narrow: bool = False) -> None:
    """Draw the curves, each beside its key, or for a phone above it (`narrow`).

    JellyBeanError for a format other than .svg, .png and .pdf, or if no plan was found.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure as Picture

    width, characters, in_title = NARROW if narrow else WIDE
    panels = [(curve, [*_rows(frontier, curve, characters)]) for curve in frontier.curves if _spots(curve)]
    if not panels:
        raise JellyBeanError(f"{path}: no plan to draw")
    keys = [LINE_INCHES * sum(1 + cells[-1].count("\n") for _, cells in [*rows, *rows[:3]]) for _, rows in panels]
    heights = [inches for key in keys for inches in ((PLOT_INCHES, key) if narrow else (max(PLOT_INCHES, key),))]
    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(width, sum(heights)), facecolor=SURFACE, layout="constrained")
        grid = {"height_ratios": heights, "width_ratios": (1,) if narrow else (1.45, 1), "hspace": 0.06}
        frames = picture.subplots(len(heights), 1 if narrow else 2, squeeze=False, gridspec_kw=grid).ravel()
        for (curve, _), axes, key in zip(panels, frames[::2], frames[1::2], strict=True):
            title = textwrap.fill(f"{frontier.moved.problem.name}: {title_text(frontier, curve)}", in_title)
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=26)
            _draw(frontier, curve, axes)
            key.set_axis_off()
        picture.draw_without_rendering()
        picture.set_layout_engine("none")  # the places of points and keys are final now
        for (curve, rows), axes, key in zip(panels, frames[::2], frames[1::2], strict=True):
            label_above(axes, [*_labels(frontier, curve, axes)])
            _draw_key(rows, key)
        save_figure(picture, path)


def _spots(curve: Curve) -> list[Spot]:
    """The points of which both figures are known."""
    return [
        (point.figures[curve.x], point.figures[curve.y], point)
        for point in curve.points
        if {curve.x, curve.y} <= {*point.figures}
    ]


def _draw(frontier: Frontier, curve: Curve, axes: Any) -> None:
    """Draw everything but what needs to know where the points lie."""
    spots, current = _spots(curve), frontier.current if curve is frontier.curve else None
    xs, ys = [x for x, _, _ in spots], [y for _, y, _ in spots]
    if current is not None:
        xs, ys = [*xs, current.accuracy], [*ys, current.cost_usd_per_h]
        axes.plot(xs[-1], ys[-1], "D", ms=13, mfc="none", mec=SOFT, mew=1.8, zorder=4)
    if (stated := frontier.stated(curve.x)) is not None:
        xs.append(stated)
        axes.axvline(stated, **LIMIT)
    if (limit := frontier.stated(curve.y)) is not None and limit < NEAR * max(ys):
        ys.append(limit)
        axes.axhline(limit, **LIMIT)
        label_beside(axes, limit, f"{STATED.get(curve.y, 'SLO')}\n{value_text(curve.y, limit)}")
    span = max(xs) - min(xs) or 1.0
    low, high = min(xs) - 0.09 * span, max(xs) + 0.07 * span
    xlabel, ylabel = (f"{figure_name(frontier, figure)} ({UNITS[figure]})" for figure in (curve.x, curve.y))
    axes.set(xlim=(low, high), ylim=(0, 1.14 * max(ys) or 1.0), xlabel=xlabel, ylabel=ylabel)
    if frontier.single is not None and curve is frontier.curve:
        _draw_line(axes, frontier.single, low, SINGLE)
    _draw_line(axes, curve, low, CURVE)
    for x, y, point in spots:
        color = _color(frontier, point)
        axes.plot(x, y, "o", ms=6, mfc=SURFACE if point.breaches else color, mec=color, mew=1.6, zorder=5)
    if curve.ended:
        axes.axvspan(spots[-1][0], high, color=LINE, alpha=0.45, linewidth=0, zorder=0)
    bare(axes)


def _draw_line(axes: Any, curve: Curve, low: float, color: str) -> None:
    """What the best known plans cost, dotted between points that say nothing of it; shaded down to the lower bounds.

    A plan for an accuracy does for all lower ones.
    """
    before: Spot | None = None
    shade = {"color": color, "alpha": 0.13}
    for x, y, point in _spots(curve):
        start = max(low, min(point.start, x))
        left = start if before is None else before[0] if curve.x is Figure.ACCURACY else x
        axes.plot([left, x], [y, y], color=color, linewidth=2, zorder=3)
        if before is not None:
            style = "-" if left == before[0] else ":"
            axes.plot([before[0], left], [before[1], y], color=color, linewidth=1, linestyle=style, zorder=3)
        if curve.y is Figure.COST and point.gap > LEAST_GAP:
            axes.fill_between([start, x], point.bound_usd_per_h, y, linewidth=5, **shade)
        if curve.y is Figure.COST and before is not None and left < start:
            axes.fill_between([left, start], before[2].bound_usd_per_h, y, linewidth=0, **shade)
        before = x, y, point


def _color(frontier: Frontier, point: CurvePoint) -> str:
    return BAD if point.breaches else INK if point is frontier.chosen else CURVE


def _labels(frontier: Frontier, curve: Curve, axes: Any) -> Iterator[tuple[float, str]]:
    """What is said above the frame: what is stated, and where the curve ends."""
    if curve.ended:
        yield (_spots(curve)[-1][0] + axes.get_xlim()[1]) / 2.0, "no plan" if curve.finished else "unknown"
    if (stated := frontier.stated(curve.x)) is not None:
        yield stated, f"{STATED.get(curve.x, 'SLO')} {value_text(curve.x, stated)}"


def _rows(frontier: Frontier, curve: Curve, width: int) -> Iterator[Row]:
    """The rows of the key: of points the gap, and what is new in their plans; then what signs mean."""
    yield SOFT, (heading(curve.x), heading(curve.y), "plan")
    spots, changed = _spots(curve), {id(point): changed for point, changed in with_changes(curve)}
    for x, y, point in spots[:: len(spots) // MAX_ROWS + 1]:
        new = [f"{one.operator} {one.variant}" if one.variant_changed else str(one) for one in changed[id(point)]]
        new[:0] = [f"gap {point.gap:.2%}"] if point.gap > LEAST_GAP else []
        lines = textwrap.wrap("; ".join(new) or "only rates", width, max_lines=ROW_LINES, placeholder=" …")
        yield _color(frontier, point), (TEXTS[curve.x](x), TEXTS[curve.y](y), "\n".join(lines))
    signs = [(SOFT, ""), (CURVE, f"● {proof_text(curve)}")]
    if any(point.breaches for point in curve.points):
        signs.append((BAD, "○ misses a target: see the table"))
    if curve is frontier.curve:
        signs += [] if frontier.chosen is None else [(INK, "● the plan of `jellybean plan`")]
        signs += [] if frontier.current is None else [(SOFT, "◇ current plan")]
        signs += [] if frontier.single is None else [(SINGLE, "— one selection for all requests")]
    yield from ((color, ("", "", text)) for color, text in signs)


def _draw_key(rows: list[Row], key: Any) -> None:
    line, y = LINE_INCHES / (key.get_position().height * key.figure.get_figheight()), 1.0
    for color, cells in rows:
        for (x, side), text in zip(COLUMNS, cells, strict=True):
            key.text(x, y, text, ha=side, va="top", color=color, fontsize=8.5, linespacing=1.4)
        y -= line * (1 + cells[-1].count("\n"))
