"""Plots how the solver's time grows with workers and operators."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import INK, LINE, SERIES, SOFT, STYLE, SURFACE, save_figure

COLORS = {"shared": SERIES[0], "exclusive": SERIES[1]}
ASKED = {"shared": "shared workers, to 0.1 %", "exclusive": "exclusive workers, to 1 %"}
TICKS_S = (0.1, 0.3, 1, 3, 10, 30)
OPERATORS, WORKERS = 30, 10_000  # fixed while the other one grows


@dataclass(frozen=True, slots=True)
class Point:
    """Solve times of one size, over seeds. `missed`: a seed hit the time limit above the requested gap."""

    operators: int
    workers: int
    sharing: str
    seconds: tuple[float, ...]
    missed: bool


def save_plot(points: Sequence[Point], path: Path) -> None:
    """Two panels: by workers, by operators."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.6), facecolor=SURFACE, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        by_workers = [point for point in points if point.operators == OPERATORS]
        by_operators = [point for point in points if point.workers == WORKERS]
        left.set_xscale("log")
        _panel(left, by_workers, [point.workers for point in by_workers], "workers")
        _panel(right, by_operators, [point.operators for point in by_operators], "operators")
        left.set_ylabel("median, and range over seeds")
        left.set_title(f"{OPERATORS} operators", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        right.set_title(f"{WORKERS:,} workers", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        save_figure(figure, path)


def _panel(axes: Any, points: Sequence[Point], sizes: Sequence[int], label: str) -> None:
    for sharing, color in COLORS.items():
        own = sorted(
            (size, point.seconds, point.missed)
            for size, point in zip(sizes, points, strict=True)
            if point.sharing == sharing
        )
        xs, medians = [size for size, _, _ in own], [statistics.median(seconds) for _, seconds, _ in own]
        axes.plot(xs, medians, color=color, linewidth=1.6, label=ASKED[sharing], zorder=3)
        axes.vlines(xs, [min(s) for _, s, _ in own], [max(s) for _, s, _ in own], color=color, linewidth=4, alpha=0.25)
        for (x, _, missed), y in zip(own, medians, strict=True):
            axes.plot([x], [y], "o", ms=6, mec=color, mew=1.6, mfc=SURFACE if missed else color, zorder=4)
    axes.plot([], [], "o", ms=6, mec=SOFT, mew=1.6, mfc=SURFACE, label="gap not reached in time by every seed")
    axes.set_yscale("log")
    axes.set_yticks(TICKS_S, list(map(formats.axis_duration, TICKS_S)))
    axes.set_ylim(0.1, 50)
    axes.set_xticks(sorted(set(sizes)), [f"{size:,}" for size in sorted(set(sizes))])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
