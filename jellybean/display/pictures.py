"""Formats, colours and matplotlib style of all pictures."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import Any, Literal

from jellybean.display import formats, palette
from jellybean.errors import JellyBeanError
from jellybean.folders import write_file

PLOT_FORMATS = (".svg", ".png", ".pdf")
INK, SOFT, LINE = (palette.PALETTE[name].light for name in ("ink", "soft", "line"))
SUNKEN, SURFACE = (palette.PALETTE[name].light for name in ("sunken", "surface"))
WORKER, BAD = (palette.PALETTE[name].light for name in ("worker-2", "bad"))
PREDICTED = palette.PALETTE["predicted"].light
SERIES, TINTS = palette.SERIES, palette.TINTS
DASHES = ("-", "--", ":", "-.")
LIMIT = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 2}  # a target or limit: ink, dashed
LABEL_PT = 8.0
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.labelcolor": SOFT,
    "svg.fonttype": "none",
    "svg.hashsalt": "jellybean",  # makes the ids in SVG files reproducible
}


def load_matplotlib() -> Any:
    """matplotlib, without a file `matplotlibrc` of the current folder.

    Such a file names modules to import and programs to run, and the folder may be a project from elsewhere.
    """
    elsewhere = contextlib.chdir(Path(__file__).parent) if os.path.lexists("matplotlibrc") else contextlib.nullcontext()
    with elsewhere:
        import matplotlib

    return matplotlib


def series_style(number: int) -> dict[str, Any]:
    """Colour and dashes of one of up to 20 curves, which are told apart without colour too."""
    return {"color": SERIES[number % len(SERIES)], "linestyle": DASHES[number % len(DASHES)]}


def bare(axes: Any, grid: Literal["x", "y"] = "y") -> None:
    """A panel without a frame at the top and right, and with thin lines across one axis."""
    axes.grid(axis=grid, color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def require_picture(path: Path) -> None:
    """JellyBeanError unless a picture can be written to `path`; call it before long work starts."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise JellyBeanError(f"{path}: the file name must end in {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise JellyBeanError(f"{path}: folder {path.parent} not found")
    if path.is_dir():
        raise JellyBeanError(f"{path}: is a folder, not a file")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure without its date, so that files are reproducible, and whole: a full disk leaves the old one."""
    picture, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    figure.savefig(picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_file(path, picture.getvalue())


def span_ticks(axis: Any) -> None:
    """Ticks of an axis over a span of time at whole units, some nine: every 3 of 24 hours, every 3 of 25 minutes."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(9, steps=[1, 2, 3, 5, 6, 10], integer=True))


def durations(axis: Any) -> None:
    """Ticks of a linear axis as durations: 0 s, 500 µs, 2.5 ms."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: formats.axis_duration(value)))


def log_durations(axis: Any) -> None:
    """Ticks of a logarithmic axis as durations, at powers of ten alone: 100 ms, 1 s, 10 s."""
    _log_ticks(axis, formats.axis_duration)


def log_sizes(axis: Any) -> None:
    """Ticks of a logarithmic axis as decimal sizes, at powers of ten alone: 10 MB, 100 MB."""
    _log_ticks(axis, formats.axis_size)


def log_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers, at powers of ten alone: 0.1, 1, 10."""
    _log_ticks(axis, formats.plain)


def _log_ticks(axis: Any, text: Any) -> None:
    """At least two labels: if the axis spans less than a decade, 1, 2 and 5 of each are labelled."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = sorted(axis.get_view_interval())
    for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = _decades(low, high, steps)
        if len(ticks) >= 2:
            break
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())


def _decades(low: float, high: float, steps: Sequence[float]) -> list[float]:
    first, last = floor(log10(low)), floor(log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def label_above(axes: Any, labels: Sequence[tuple[float, str]]) -> None:
    """Label vertical lines above the frame, where no line of the plot runs; labels that would meet are stacked.

    `labels`: (x, text). Call it when the limits of the x axis are final.
    """
    height = LABEL_PT + 3
    ends: list[float] = []  # right end of the last label of each level, in points
    for x, text in sorted(labels):
        at = axes.transData.transform((x, 0))[0] * 72 / axes.figure.dpi
        half = 0.3 * LABEL_PT * len(text) + 3
        level = next((level for level, end in enumerate(ends) if at - half >= end), len(ends))
        ends[level : level + 1] = [at + half]
        axes.annotate(
            text, (x, 1.0), xytext=(0, 3 + height * level), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", color=INK, fontsize=LABEL_PT,
        )  # fmt: skip


def label_beside(axes: Any, y: float, text: str) -> None:
    """Label a horizontal line at the right of the frame, where no line of the plot runs."""
    axes.annotate(
        text, (1.0, y), xytext=(4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="left", va="center", color=INK, fontsize=LABEL_PT,
    )  # fmt: skip
