"""Draw the curves as a picture: numbered points, and a key with the plan of each number."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import (
    LIMIT,
    LINE,
    SOFT,
    STYLE,
    label_above,
    load_matplotlib,
    require_picture,
    save_figure,
)
from jellybean.errors import JellyBeanError
from jellybean.frontier.changes import changes
from jellybean.frontier.find import Frontier
from jellybean.frontier.mixed_plot import draw_mixed, mixed_marks
from jellybean.frontier.mixed_view import PROVEN
from jellybean.frontier.panel import (
    CURVE,
    WIDE,
    Key,
    Layout,
    Mark,
    draw_key,
    key_lines,
    limits_of,
    numbered,
    panel_frames,
    set_axes,
    set_title,
    workers_text,
)
from jellybean.frontier.view import accuracy_text
from jellybean_solver import COST_TOLERANCE, Plan, is_gap_closed


def save_plot(frontier: Frontier, path: Path, layout: Layout = WIDE) -> None:
    """Draw the curves. JellyBeanError for a format other than .svg, .png and .pdf, or if no plan was found."""
    require_picture(path)
    matplotlib = load_matplotlib()

    first = (_accuracy, _corners(frontier))
    if frontier.mixed is not None:
        first = (draw_mixed, mixed_marks(frontier, frontier.mixed))
    panels = [(draw, marks) for draw, marks in (first, (_rate, _rates(frontier))) if marks]
    if not panels:
        raise JellyBeanError(f"{path}: no plan to draw")
    with matplotlib.rc_context(STYLE):
        figure, frames = panel_frames(layout, [key_lines(marks, layout) for _, marks in panels])
        for (draw, marks), (axes, key) in zip(panels, frames, strict=True):
            draw(frontier, marks, axes, Key(key, layout))
        save_figure(figure, path)


def _corners(frontier: Frontier) -> list[Mark]:
    corners = frontier.accuracy.corners
    varied = {
        name
        for corner in corners
        for name, v in corner.plan.selection.items()
        if v != corners[0].plan.selection.get(name)
    }
    found: list[Mark] = []
    before: Plan | None = None
    for corner in corners:
        x, y, bound = corner.accuracy, corner.cost_usd_per_h, corner.bound_usd_per_h
        changed = [change for change in changes(before, corner.plan) if before is not None or change.operator in varied]
        new = ", ".join(f"{change.operator} {change.variant}" for change in changed if change.variant_changed)
        words = new or workers_text(corner.plan)
        figures = (formats.accuracy(x), formats.usd(y))
        found.append(Mark(x, y, bound, figures, words, bool(corner.breaches), corner is frontier.chosen))
        before = corner.plan
    return found


def _rates(frontier: Frontier) -> list[Mark]:
    found: list[Mark] = []
    before: Plan | None = None
    for point in frontier.rates.points if frontier.rates is not None else ():
        if point.plan is None:
            continue
        x, y = frontier.problem.sources[0].rate_per_s * point.scale, point.plan.cost.total_usd_per_h
        changed = changes(before, point.plan) if before is not None else ()
        new = [f"{change.operator} {change.variant}" for change in changed if change.variant_changed]
        words = ", ".join([workers_text(point.plan), *new])
        figures = (formats.rate(x), formats.usd(y))
        found.append(Mark(x, y, point.bound_usd_per_h, figures, words, bool(point.breaches)))
        before = point.plan
    return found


def _accuracy(frontier: Frontier, marks: Sequence[Mark], axes: Any, key: Key) -> None:
    """Draw the cost-accuracy curve as steps: a point's cost applies from the previous point's accuracy to its own."""
    curve, current, target = frontier.accuracy, frontier.current, frontier.target
    low, high = limits_of([mark.x for mark in marks], target, current.accuracy if current is not None else None)
    set_axes(axes, frontier, marks, (low, high))
    axes.set_xlabel(f"accuracy target{frontier.of} (%)")
    for start, mark in zip([low, *(mark.x for mark in marks)], marks, strict=False):
        axes.hlines(mark.y, start, mark.x, color=CURVE, linewidth=2, zorder=3)
        axes.fill_between([start, mark.x], mark.bound, mark.y, color=CURVE, alpha=0.13, linewidth=0)
    for before, mark in itertools.pairwise(marks):
        axes.vlines(before.x, before.y, mark.y, color=CURVE, linewidth=1, alpha=0.55, zorder=3)
    axes.axvspan(marks[-1].x, high, color=LINE, alpha=0.45, linewidth=0, zorder=0)
    labels = [((marks[-1].x + high) / 2, "infeasible" if curve.finished else "unknown")]
    legend: list[tuple[str, str]] = []
    if target is not None:
        axes.axvline(target, **LIMIT)
        labels.append((target, f"SLO {formats.plain(target)}"))
        legend += [(mark.color, "● cheapest plan for the SLO") for mark in marks if mark.chosen]
    if current is not None:
        axes.plot([current.accuracy], [current.cost_usd_per_h], "D", ms=13, mfc="none", mec=SOFT, mew=1.8, zorder=4)
        legend.append((SOFT, "◇ current plan"))
    proof = "proven optimal" if curve.proven else "not proven; shaded: gap to the lower bound"
    label_above(axes, labels)
    set_title(axes, key.layout, f"{frontier.problem.name}: minimum cost by accuracy ({proof})")
    draw_key(key, marks, numbered(axes, marks), ("accuracy", "USD/h", "changes"), legend)


def _rate(frontier: Frontier, marks: Sequence[Mark], axes: Any, key: Key) -> None:
    """Draw the cost-rate curve: points joined by a dotted line, because the cost between them is unknown."""
    source, curve = frontier.problem.sources[0], frontier.rates
    now, highest = source.rate_per_s, curve.highest_scale if curve is not None else None
    top = 1.09 * max(now, marks[-1].x)
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    set_axes(axes, frontier, marks, (0.0, top))
    label = f"requests of {source.name} per second; all sources are scaled together"
    axes.set_xlabel(textwrap.fill(label, key.layout.title_width))
    axes.plot(xs, ys, color=CURVE, linewidth=1.2, linestyle=":", zorder=3)
    axes.vlines(xs, [mark.bound for mark in marks], ys, color=CURVE, linewidth=5, alpha=0.2)
    labels: list[tuple[float, str]] = []
    if highest is not None:
        axes.axvspan(now * highest, top, color=LINE, alpha=0.45, linewidth=0, zorder=0)
        labels.append((now * highest, f"no plan above {formats.rate(now * highest)}"))
    axes.axvline(now, **LIMIT)
    labels.append((now, f"now {formats.rate(now)}"))
    label_above(axes, labels)
    tolerance = PROVEN if frontier.problem.is_for_ways else COST_TOLERANCE
    exact = all(is_gap_closed(mark.y, mark.bound, tolerance) for mark in marks)
    proof = "every point proven" if exact else "not proven; bars: what might be saved at most"
    asked = accuracy_text(frontier.problem)
    set_title(axes, key.layout, f"{frontier.problem.name}: cheapest cost for a rate{asked} ({proof})")
    draw_key(key, marks, numbered(axes, marks), ("rate", "USD/h", "workers, and variants that change"), [])
