"""Draw the least cost over the mean accuracy: a line with its proven range, and what one selection for all costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import LIMIT, LINE, SERIES, SOFT, label_above
from jellybean.frontier.find import Frontier
from jellybean.frontier.mixed_view import chosen_text, proof_text, shares_text, varied_operators
from jellybean.frontier.panel import CURVE, Key, Mark, draw_key, limits_of, numbered, set_axes, set_title, workers_text
from jellybean_solver import CostAccuracy, MixedCurve

SINGLE = SERIES[1]


def mixed_marks(frontier: Frontier, curve: MixedCurve) -> list[Mark]:
    """The points, each with the selections of its requests."""
    varied = varied_operators([point.plan for point in curve.points])
    found: list[Mark] = []
    for point in curve.points:
        figures = (formats.accuracy(point.accuracy), formats.usd(point.cost_usd_per_h))
        words = shares_text(point.plan, varied) if varied else workers_text(point.plan)
        chosen = point is frontier.chosen
        y, bound = point.cost_usd_per_h, point.bound_usd_per_h
        found.append(Mark(point.accuracy, y, bound, figures, words, bool(point.breaches), chosen))
    return found


def draw_mixed(frontier: Frontier, marks: Sequence[Mark], axes: Any, key: Key) -> None:
    """Draw a panel: level where a point's plan is the cheapest, and straight from there to the next point."""
    if frontier.mixed is None:
        raise AssertionError("there is a curve of plans that mix variants")
    curve, current = frontier.mixed, frontier.current
    target = frontier.target
    corners = [mark.x for mark in marks]
    low, high = limits_of(corners, target, current.accuracy if current is not None else None)
    set_axes(axes, frontier, marks, (low, high))
    axes.set_xlabel(f"mean accuracy target{frontier.of} (%)")
    legend = [(CURVE, "— mixed variants; shaded: where the least cost lies")]
    if _draw_single(axes, frontier.accuracy, low):
        legend.append((SINGLE, "— one selection for all requests"))
    _draw_line(axes, curve, low)
    last = marks[-1].x
    axes.axvspan(last, high, color=LINE, alpha=0.45, linewidth=0, zorder=0)
    labels = [((last + high) / 2, "none found")]
    if target is not None:
        axes.axvline(target, **LIMIT)
        soft = "soft " if frontier.is_soft else ""
        labels.append((target, f"{soft}SLO {formats.plain(target)}"))
    for mark, point in zip(marks, curve.points, strict=True):
        legend += [(mark.color, f"● {text}") for text in chosen_text(frontier, point) if mark.chosen]
    if current is not None:
        axes.plot([current.accuracy], [current.cost_usd_per_h], "D", ms=13, mfc="none", mec=SOFT, mew=1.8, zorder=4)
        legend.append((SOFT, "◇ current plan"))
    label_above(axes, labels)
    set_title(axes, key.layout, f"{frontier.problem.name}: minimum cost by mean accuracy ({proof_text(curve)})")
    draw_key(key, marks, numbered(axes, marks), ("mean", "USD/h", "requests"), legend)


def _draw_line(axes: Any, curve: MixedCurve, low: float) -> None:
    """The line through both ends of each point's range, and the boxes in which the least cost is proven to lie."""
    xs, ys = [], []
    for point in curve.points:
        start = max(low, point.target)
        xs += [start, point.accuracy]
        ys += [point.cost_usd_per_h] * 2
        axes.fill_between(xs[-2:], point.bound_usd_per_h, ys[-1], color=CURVE, alpha=0.13, linewidth=0)
    axes.plot(xs, ys, color=CURVE, linewidth=2, zorder=3)
    for before, after in itertools.pairwise(curve.points):
        between = [before.accuracy, after.target]
        low_y, high_y = before.bound_usd_per_h, after.cost_usd_per_h
        axes.fill_between(between, low_y, high_y, color=CURVE, alpha=0.13, linewidth=0)


def _draw_single(axes: Any, single: CostAccuracy, low: float) -> bool:
    """The stairs of one selection for all requests; False if there are none."""
    corners = single.corners
    for start, corner in zip([low, *(one.accuracy for one in corners)], corners, strict=False):
        axes.hlines(corner.cost_usd_per_h, start, corner.accuracy, color=SINGLE, linewidth=1.2, zorder=2)
    for before, corner in itertools.pairwise(corners):
        axes.vlines(
            before.accuracy, before.cost_usd_per_h, corner.cost_usd_per_h, color=SINGLE, linewidth=0.8, alpha=0.6,
            zorder=2,
        )  # fmt: skip
    return bool(corners)
