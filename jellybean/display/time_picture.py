"""Pictures over a span of time: panels one below the other, in which each curve has a step for every interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import (
    BAD,
    LIMIT,
    STYLE,
    SURFACE,
    bare,
    label_beside,
    load_matplotlib,
    log_durations,
    require_picture,
    save_figure,
    span_ticks,
)

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Steps:
    """A curve: `values` between consecutive `borders_s`, which are one more."""

    label: str
    borders_s: Sequence[float]
    values: Sequence[float]
    color: str
    is_filled: bool = False


class Scale(Enum):
    """The y axis of a panel: numbers from 0, durations (logarithmic, as latencies grow by orders), or a share of 1."""

    NUMBERS = "numbers"
    DURATIONS = "durations"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one figure. `limits`: values at which a target or limit lies, with their labels."""

    label: str
    curves: Sequence[Steps]
    limits: Sequence[tuple[float, str]] = ()
    scale: Scale = Scale.NUMBERS


def save_time_picture(path: Path, title: str, panels: Sequence[Panel], origin_s: float = 0.0, bad: Spans = ()) -> None:
    """Draw the panels over the time from `origin_s` on, with the spans shaded in which a target is missed.

    JellyBeanError for a format other than .svg, .png and .pdf.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    start_s, *_, end_s = panels[0].curves[0].borders_s
    unit_s, unit = formats.span_unit(end_s - start_s)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 0.6 + 2.0 * len(panels)), facecolor=SURFACE, layout="constrained")
        frames = figure.subplots(len(panels), 1, sharex=True)
        for panel, axes in zip(panels, frames, strict=True):
            for curve in panel.curves:
                edges = [(origin_s + border_s) / unit_s for border_s in curve.borders_s]
                look: dict[str, Any] = {"linewidth": 1.6, "baseline": None}
                if curve.is_filled:
                    look = {"alpha": 0.35, "fill": True}
                axes.stairs(curve.values, edges, color=curve.color, label=curve.label, **look)
            for value, label in panel.limits:
                axes.axhline(value, **LIMIT)
                label_beside(axes, value, label)
            for begin_s, until_s in _merged(bad):
                span = [(origin_s + border_s) / unit_s for border_s in (begin_s, until_s)]
                axes.axvspan(*span, color=BAD, alpha=0.1, linewidth=0)
            _set_scale(axes, panel.scale)
            axes.set_ylabel(panel.label)
            bare(axes)
            place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "borderaxespad": 0.0}
            axes.legend(**place, frameon=False, ncols=4, fontsize=8)
        frames[0].set_title(title, loc="left", fontsize=10)
        frames[-1].set_xlabel(f"time of the trace ({unit})")
        frames[-1].set_xlim((origin_s + start_s) / unit_s, (origin_s + end_s) / unit_s)
        span_ticks(frames[-1].xaxis)
        save_figure(figure, path)


def _merged(spans: Spans) -> Spans:
    """The spans, with those that overlap or meet as one."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def _set_scale(axes: Any, scale: Scale) -> None:
    """The y axis, with some space above the highest value."""
    if scale is Scale.DURATIONS:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.05)
        log_durations(axes.yaxis)
    elif scale is Scale.SHARE:
        axes.set_ylim(0, 1.08)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
    else:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
