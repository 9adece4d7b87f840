"""Draw a replay: rates, latency and utilisation over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import (
    BAD,
    LIMIT,
    LINE,
    SERIES,
    STYLE,
    SURFACE,
    WORKER,
    label_beside,
    load_matplotlib,
    log_durations,
    require_picture,
    save_figure,
    span_ticks,
)
from jellybean.whatif.check import TraceCheck
from jellybean_solver import ReplayInterval


def save_plot(check: TraceCheck, path: Path) -> None:
    """Draw the replay. JellyBeanError for a format other than .svg, .png and .pdf."""
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 6.6), facecolor=SURFACE)
        panels = figure.subplots(3, 1, sharex=True)
        figure.subplots_adjust(left=0.095, right=0.9, top=0.93, bottom=0.075, hspace=0.26)
        unit_s, unit = formats.span_unit(check.replay.length_s)
        for axes, draw in zip(panels, (_rates, _latency, _utilisation), strict=True):
            draw(check, axes, unit_s)
            axes.set_axisbelow(True)
            axes.grid(axis="y", color=LINE, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylim(bottom=0 if axes.get_yscale() == "linear" else None)
            if axes.get_legend_handles_labels()[0]:
                place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "borderaxespad": 0.0}
                axes.legend(**place, frameon=False, ncols=4, fontsize=8)
            _mark_breaks(check, axes, unit_s)
        figure.align_ylabels(panels)
        panels[-1].set_xlabel(f"time since the start of the trace ({unit})")
        span_ticks(panels[-1].xaxis)
        panels[-1].set_xlim(0, check.replay.length_s / unit_s)
        panels[0].set_title(_title(check), loc="left", fontsize=10)
        save_figure(figure, path)


def _title(check: TraceCheck) -> str:
    verdict = "misses a target" if check.replay.breaks else "meets all targets"
    sampled = f", {check.replay.share:.0%} of the time simulated" if check.replay.share < 1 else ""
    return f"{check.plan.name}: {verdict} in {check.file.path.name}{sampled}"


def _rates(check: TraceCheck, axes: Any, unit_s: float) -> None:
    """Draw one line per distinct rate curve: sources of one request stream share a line."""
    curves: dict[tuple[float, ...], list[str]] = {}
    for name in check.file.trace.peaks_per_s:
        curves.setdefault(tuple(s.rates_per_s[name] for s in check.file.trace.stretches), []).append(name)
    borders = [s.start_s / unit_s for s in check.file.trace.stretches] + [check.replay.length_s / unit_s]
    for (rates, names), color in zip(curves.items(), SERIES * len(curves), strict=False):
        axes.stairs(rates, borders, color=color, linewidth=1.6, label=", ".join(names), baseline=None)
    declared = check.plan.sources[0].rate_per_s
    if len(curves) == 1:
        axes.axhline(declared, **LIMIT)
        label_beside(axes, declared, f"planned\n{formats.rate(declared)}")
    axes.set_ylabel("requests / s")
    axes.set_ylim(top=1.1 * max(declared, *check.file.trace.peaks_per_s.values()))


def _latency(check: TraceCheck, axes: Any, unit_s: float) -> None:
    """Draw p50 and p99 latency on a logarithmic axis, because latency under overload grows by orders of magnitude."""
    _stairs(check.replay.intervals, axes, unit_s, lambda i: i.latency_p50_s, SERIES[0], "p50")
    _stairs(check.replay.intervals, axes, unit_s, lambda i: i.latency_p99_s, SERIES[1], "p99")
    slo = check.plan.slo
    target_s, soft = (slo.latency_p99_s, "") if slo.soft_latency_p99_s is None else (slo.soft_latency_p99_s, "soft ")
    if target_s is not None:
        axes.axhline(target_s, **LIMIT)
        label_beside(axes, target_s, f"{soft}p99 target\n{formats.duration(target_s)}")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.05)
    log_durations(axes.yaxis)
    axes.set_ylabel("latency")


def _utilisation(check: TraceCheck, axes: Any, unit_s: float) -> None:
    """Draw the utilisation of the busiest worker or link in each interval."""
    peak = max(check.replay.intervals, key=lambda interval: interval.utilisation)
    label = f"busiest worker or link (peak: {peak.busiest})"
    _stairs(check.replay.intervals, axes, unit_s, lambda i: i.utilisation, WORKER, label)
    axes.axhline(1.0, **LIMIT)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylabel("utilisation")


def _stairs(
    intervals: Sequence[ReplayInterval],
    axes: Any,
    unit_s: float,
    value: Callable[[ReplayInterval], float],
    color: str,
    label: str,
) -> None:
    borders = [interval.start_s / unit_s for interval in intervals] + [intervals[-1].end_s / unit_s]
    axes.stairs([value(i) for i in intervals], borders, color=color, linewidth=1.6, label=label, baseline=None)


def _merge_spans(spans_s: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans_s):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
        else:
            merged.append((start_s, end_s))
    return merged


def _mark_breaks(check: TraceCheck, axes: Any, unit_s: float) -> None:
    """Shade the time in which any target is missed."""
    for start_s, end_s in _merge_spans(span for item in check.replay.breaks for span in item.spans_s):
        axes.axvspan(start_s / unit_s, end_s / unit_s, color=BAD, alpha=0.1, linewidth=0)
