"""A timeline as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jellybean.pictures import SOFT, STYLE, require_picture, save_figure
from jellybean_solver.pipeline.actions import Action, Kind
from jellybean_solver.pipeline.simulate import Timeline, bubble_fraction

# By kind: of first and of second stages or copies.
_COLOURS = {
    Kind.FORWARD: ("#a9d3f5", "#5b9fd8"),
    Kind.BACKWARD: ("#b8e0b0", "#6fb463"),
    Kind.INPUT_GRADIENT: ("#b8e0b0", "#6fb463"),
    Kind.WEIGHT_GRADIENT: ("#f6dfa0", "#dcb24a"),
}
_NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
}
MOST_LABELS = 4000  # actions; a picture of more has no numbers in its boxes


def save_timeline(timeline: Timeline, path: Path) -> None:
    """Draw devices over time: boxes with their micro-batch. JellyBeanError for a format other than .svg, .png, .pdf."""
    require_picture(path)
    import matplotlib
    from matplotlib.figure import Figure

    schedule = timeline.schedule
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 1.3 + 0.36 * schedule.devices), facecolor="white")
        axes = figure.subplots()
        for device in range(schedule.devices):
            _row(axes, timeline, device)
        axes.set_ylim(schedule.devices - 0.45, -0.55)
        axes.set_xlim(0, 1.003 * timeline.makespan_s)
        axes.set_yticks(range(schedule.devices), [f"device {device}" for device in range(schedule.devices)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(_title(timeline), loc="left", fontsize=10)
        _legend(axes, timeline)
        figure.subplots_adjust(
            left=0.07, right=0.99, top=1 - 0.3 / figure.get_figheight(), bottom=0.85 / figure.get_figheight()
        )
        save_figure(figure, path)


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    idle = "idle" if schedule.flushes else "idle in the steady state"
    return (
        f"{schedule.name}: {schedule.devices} devices, {schedule.microbatches} micro-batches, "
        f"{bubble_fraction(timeline):.1%} {idle}"
    )


def _row(axes: Any, timeline: Timeline, device: int) -> None:
    labelled = sum(map(len, timeline.schedule.actions)) <= MOST_LABELS
    for span in timeline.spans(device):
        if span.action.kind is Kind.UPDATE:
            axes.plot([span.end_s] * 2, [device - 0.45, device + 0.45], color="#333333", linewidth=1.4)
        if span.action.kind not in _COLOURS or span.end_s <= span.start_s:
            continue
        colour = _COLOURS[span.action.kind][_second(timeline, span.action)]
        width = span.end_s - span.start_s
        axes.barh(device, width, left=span.start_s, height=0.82, color=colour, edgecolor="white", linewidth=0.8)
        if labelled:
            middle = span.start_s + width / 2
            axes.text(middle, device, str(span.action.microbatch), ha="center", va="center", fontsize=7)


def _second(timeline: Timeline, action: Action) -> bool:
    return action.pipe > 0 or action.stage >= timeline.schedule.devices


def _legend(axes: Any, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    schedule = timeline.schedule
    kinds = dict.fromkeys(action.kind for _, action in schedule if action.kind in _COLOURS)
    second = "second copy" if len(schedule.device_of) > 1 else f"stages from {schedule.devices}"
    handles: list[Any] = [Patch(color=_COLOURS[kind][0], label=_NAMES[kind]) for kind in kinds]
    if schedule.chunks > 1:
        handles += [Patch(color=_COLOURS[kind][1], label=f"{_NAMES[kind]}, {second}") for kind in kinds]
    handles.append(Line2D([], [], color="#333333", linewidth=1.4, label="update"))
    axes.figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.06, 0), ncols=4, frameon=False, fontsize=8, labelcolor=SOFT
    )
