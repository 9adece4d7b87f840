"""A panel of a curve: its axes with numbered points, and a key with the plan of each number."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import BAD, INK, LIMIT, LINE, SERIES, SOFT, SURFACE, label_beside, line_points
from jellybean.frontier.find import Frontier
from jellybean_solver import Plan

MAX_NUMBERED = 14  # points listed in the key; of more points, an evenly spread selection
CURVE = SERIES[0]
KEY_LINES = 2  # lines of one point in the key
LINE_INCHES = 0.19  # height of a line of a key below its plot
NUMBER_WIDTH, NUMBER_HEIGHT = 9.0, 8.5  # points (1/72 inch) around a number or marker that other numbers keep free
LINE_WIDTH, LINE_HEIGHT = 7.0, 6.5  # points around a number that lines keep free
OFFSETS = (
    (-9.5, 9),
    (9.5, -9),
    (-9.5, 19),
    (9.5, -19),
    (-20, 10),
    (20, -10),
    (-9.5, 30),
    (9.5, -30),
    (-9.5, 41),
    (0, 14),
    (0, -14),
    (-16, 16),
    (16, -16),
    (-24, 4),
    (24, -4),
    (9.5, 12),
    (-9.5, -12),
    (0, 24),
    (0, -24),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes for one type of screen, in inches; `key_width` and `title_width` in characters.

    The key is beside the plot, or, if `stacked`, below it.
    """

    width: float
    plot_height: float
    key_width: int
    title_width: int
    stacked: bool


WIDE = Layout(11.5, 4.9, 42, 90, stacked=False)
NARROW = Layout(4.06, 3.6, 40, 46, stacked=True)  # 390 pixels


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of a curve, with its texts in the key (`figures`, `words`). `bound`: lower bound of the cost."""

    x: float
    y: float
    bound: float
    figures: tuple[str, str]
    words: str
    broken: bool
    chosen: bool = False

    @property
    def color(self) -> str:
        return BAD if self.broken else INK if self.chosen else CURVE


def panel_frames(layout: Layout, lines_of_keys: Sequence[int]) -> tuple[Any, list[tuple[Any, Any]]]:
    """A figure with a plot and a key for each panel; `lines_of_keys`: lines of each key."""
    from matplotlib.figure import Figure

    rows = range(len(lines_of_keys))
    if not layout.stacked:
        height = layout.plot_height * len(rows)
        figure = Figure(figsize=(layout.width, height), facecolor=SURFACE)
        columns = {"width_ratios": (1.45, 1), "left": 0.065, "right": 0.985, "wspace": 0.16}
        grid = figure.add_gridspec(len(rows), 2, **columns, hspace=0.34, bottom=0.55 / height, top=1 - 0.62 / height)
        return figure, [(figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row, 1])) for row in rows]
    keys = [0.3 + LINE_INCHES * lines for lines in lines_of_keys]
    height = sum(keys) + layout.plot_height * len(lines_of_keys)
    figure = Figure(figsize=(layout.width, height), facecolor=SURFACE)
    frames: list[tuple[Any, Any]] = []
    top = height
    for key_height in keys:
        top -= layout.plot_height
        inner = (0.15, (top + 0.75) / height, 0.63, (layout.plot_height - 1.5) / height)
        below = (0.03, (top - key_height + 0.2) / height, 0.94, (key_height - 0.2) / height)
        frames.append((figure.add_axes(inner), figure.add_axes(below)))
        top -= key_height
    return figure, frames


@dataclass(frozen=True, slots=True)
class Key:
    """The frame of a panel's key."""

    axes: Any
    layout: Layout


def set_title(axes: Any, layout: Layout, text: str) -> None:
    """Set the title of a panel, broken into lines that fit."""
    lines = textwrap.fill(text, layout.title_width)
    at = {"x": -0.2} if layout.stacked else {}
    axes.set_title(lines, loc="left", fontsize=9.5 if layout.stacked else 10.5, fontweight="bold", pad=26, **at)


def set_axes(
    axes: Any,
    frontier: Frontier,
    marks: Sequence[Mark],
    limits: tuple[float, float],
) -> None:
    """Set limits and grid; draw the budget if it is near the curve."""
    budget = frontier.problem.slo.budget_usd_per_h
    current = frontier.current.cost_usd_per_h if frontier.current is not None else 0.0
    top = max(current, *(mark.y for mark in marks)) or 1.0
    if budget is not None and budget < 1.6 * top:
        top = max(top, budget)
        axes.axhline(budget, **LIMIT)
        label_beside(axes, budget, f"budget\n{formats.usd(budget)} USD/h")
    axes.set_xlim(*limits)
    axes.set_ylim(0, 1.14 * top)
    axes.set_ylabel("USD per hour")
    axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def limits_of(xs: Sequence[float], *others: float | None) -> tuple[float, float]:
    """Limits of the x axis with a margin around all that is on it."""
    every = [*xs, *(x for x in others if x is not None)]
    span = max(every) - min(every) or max(1.0, 0.02 * abs(max(every)))
    return min(every) - 0.09 * span, max(every) + 0.07 * span


def numbered(axes: Any, marks: Sequence[Mark]) -> dict[int, int]:
    """Draw the points and number those in the key without overlaps. Returns index -> number."""
    for mark in marks:
        fill = SURFACE if mark.broken else mark.color
        axes.plot([mark.x], [mark.y], "o", ms=6, mfc=fill, mec=mark.color, mew=1.6, zorder=5)
    listed = _listed(marks)
    points_per_pixel = 72 / axes.figure.dpi
    taken = [tuple(axes.transData.transform((mark.x, mark.y)) * points_per_pixel) for mark in marks]
    lines = line_points(axes)
    for number, index in enumerate(listed, 1):
        x, y = taken[index]
        free = (
            (dx, dy)
            for dx, dy in OFFSETS
            if all(abs(x + dx - u) > NUMBER_WIDTH or abs(y + dy - v) > NUMBER_HEIGHT for u, v in taken)
            and all(abs(x + dx - u) > LINE_WIDTH or abs(y + dy - v) > LINE_HEIGHT for u, v in lines)
        )
        offset = next(free, OFFSETS[0])
        taken.append((x + offset[0], y + offset[1]))
        leader = {"arrowstyle": "-", "color": SOFT, "lw": 0.5, "shrinkB": 3} if offset not in OFFSETS[:2] else None
        axes.annotate(
            str(number),
            (marks[index].x, marks[index].y),
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold",
            color=INK,
            arrowprops=leader,
            zorder=6,
        )
    return {index: number for number, index in enumerate(listed, 1)}


def _listed(marks: Sequence[Mark]) -> list[int]:
    """Indices of the points that get a number: the first, the last, the chosen one, and evenly spaced others."""
    if len(marks) <= MAX_NUMBERED:
        return list(range(len(marks)))
    steps = MAX_NUMBERED - 2
    even = {round(step * (len(marks) - 1) / steps) for step in range(steps + 1)}
    return sorted(even | {index for index, mark in enumerate(marks) if mark.chosen})


def key_lines(marks: Sequence[Mark], layout: Layout) -> int:
    """Lines of a key at most: headings, its points, and three signs below them."""
    return 5 + sum(len(_wrapped(marks[index], layout)) for index in _listed(marks))


def _wrapped(mark: Mark, layout: Layout) -> list[str]:
    """The lines of a point's words."""
    return textwrap.wrap(mark.words, layout.key_width, max_lines=KEY_LINES, placeholder=" …") or [""]


def draw_key(
    frame: Key,
    marks: Sequence[Mark],
    numbers: dict[int, int],
    headings: tuple[str, str, str],
    legend: Sequence[tuple[str, str]],
) -> None:
    """Draw the key: one entry per number, and below it the legend."""
    key = frame.axes
    columns = ((0.16, "right"), (0.28, "right"), (0.32, "left"))
    words = {index: _wrapped(marks[index], frame.layout) for index in numbers}
    signs = list(legend)
    if any(mark.broken for mark in marks):
        signs.append((BAD, "○ misses a target: see the table"))
    if len(numbers) < len(marks):
        signs.append((SOFT, f"{len(marks) - len(numbers)} more points without a number: see the table"))
    lines = 2 + sum(map(len, words.values())) + len(signs)
    step, y = min(0.06, 1.0 / lines), 1.0
    if frame.layout.stacked:
        step = LINE_INCHES / (key.get_position().height * key.figure.get_figheight())
    key.set_axis_off()
    for (x, side), text in zip(columns, headings, strict=True):
        key.text(x, y, text, ha=side, va="top", color=SOFT, fontsize=8)
    for index, number in numbers.items():
        y -= step
        color = BAD if marks[index].broken else INK
        weight = "bold" if marks[index].chosen else "normal"
        style = {"va": "top", "color": color, "fontsize": 8.5}
        key.text(0.0, y, str(number), ha="left", fontweight="bold", **style)
        for (x, side), text in zip(columns, marks[index].figures, strict=False):
            key.text(x, y, text, ha=side, fontweight=weight, **style)
        for line in words[index]:
            key.text(columns[2][0], y, line, ha="left", **style)
            y -= step if line is not words[index][-1] else 0.0
    y -= step / 2
    for color, text in signs:
        y -= step
        key.text(0.0, y, text, ha="left", va="top", color=color, fontsize=8.5)


def workers_text(plan: Plan) -> str:
    """Number of workers by tier, over all sites: `4 edge + 2 cloud`."""
    counts = {tier: sum(worker.tier == tier for worker in plan.workers) for tier in plan.tiers}
    return " + ".join(f"{count * plan.sites.get(tier, 1):,} {tier}" for tier, count in counts.items() if count)
