"""Draws the ways of summing gradients over the number of workers: total traffic, busiest link, time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import (
    INK,
    LINE,
    SERIES,
    SOFT,
    STYLE,
    SURFACE,
    load_matplotlib,
    log_durations,
    log_sizes,
    require_picture,
    save_figure,
)
from jellybean.pipeline.collectives.comparison import Comparison, compare_ways
from jellybean_solver.pipeline import WAYS

PLOTTED_WORKERS = 64  # least right end of the axis
EVERY = 16  # up to here every number of workers is drawn, then some of each doubling, with steps at powers of 2
_COLOURS = dict(zip(("parameter-server", "naive", "ring", "tree", "butterfly"), SERIES, strict=True))
_DASHES = {"parameter-server": "-", "naive": "--", "ring": "-", "tree": "-.", "butterfly": ":"}


def save_comparison(comparison: Comparison, path: Path) -> None:
    """Draw every way for 2 to max(64, workers) workers; a line marks the comparison's number.

    JellyBeanError for a format other than .svg, .png and .pdf.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    counts = plotted_workers(comparison.workers)
    every = [compare_ways(count, comparison.size_bytes, comparison.link) for count in counts]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 3.9), facecolor=SURFACE)
        panels = figure.subplots(1, 3)
        _panel(panels[0], counts, {name: [one.traffic[name].total_bytes for one in every] for name in WAYS})
        _panel(panels[1], counts, {name: [one.traffic[name].busiest_bytes for one in every] for name in WAYS})
        _panel(panels[2], counts, {name: [one.seconds(name) for one in every] for name in WAYS}, seconds=True)
        for axes, title in zip(panels, ("total traffic", "bytes over the busiest link", "time"), strict=True):
            axes.set_title(title, loc="left", fontsize=10, color=INK)
            if comparison.workers > 1:
                axes.axvline(comparison.workers, color=LINE, linewidth=5, zorder=0)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.05, 0), ncols=5, frameon=False)
        figure.suptitle(_title(comparison), x=0.07, ha="left", fontsize=10, color=SOFT)
        figure.subplots_adjust(left=0.07, right=0.985, top=0.83, bottom=0.22, wspace=0.3)
        save_figure(figure, path)


def plotted_workers(workers: int) -> list[int]:
    """The numbers of workers on the axis, `workers` among them if it is above 1."""
    last = max(workers, PLOTTED_WORKERS)
    counts = {*range(2, EVERY + 1), last, workers}
    doublings = range(4 * last.bit_length())
    counts |= {round(EVERY * 2 ** (step / 4)) + change for step in doublings for change in (-1, 0, 1)}
    return sorted(count for count in counts if 2 <= count <= last)


def _title(comparison: Comparison) -> str:
    link = comparison.link
    return (
        f"one sum of {formats.decimal_size(comparison.size_bytes)}, {link.duplex.value}-duplex links of "
        f"{formats.byte_rate(link.bandwidth_bytes_per_s)}, latency {formats.duration(link.latency_s)}"
    )


def _panel(axes: Any, counts: list[int], lines: dict[str, list[float]], *, seconds: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter

    for name, values in lines.items():
        axes.plot(counts, values, color=_COLOURS[name], linestyle=_DASHES[name], linewidth=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("workers")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    (log_durations if seconds else log_sizes)(axes.yaxis)
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
