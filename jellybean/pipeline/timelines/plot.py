"""Draws a timeline as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jellybean.display.palette import BACKWARD, FORWARD, WEIGHT_GRADIENT
from jellybean.display.pictures import (
    INK,
    SOFT,
    STYLE,
    SURFACE,
    durations,
    load_matplotlib,
    require_picture,
    save_figure,
)
from jellybean_solver.pipeline import Action, ActionKind, Timeline, bubble_fraction

# Kind of action -> (colour for a device's first stage or replica, colour for its second).
_COLOURS = {
    ActionKind.FORWARD: FORWARD,
    ActionKind.BACKWARD: BACKWARD,
    ActionKind.INPUT_GRADIENT: BACKWARD,
    ActionKind.WEIGHT_GRADIENT: WEIGHT_GRADIENT,
}
_NAMES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUT_GRADIENT: "input gradient",
    ActionKind.WEIGHT_GRADIENT: "weight gradient",
}
MAX_LABEL_PT, MIN_LABEL_PT = 7.0, 5.0  # font size of the micro-batch numbers
FONTS = ["DejaVu Sans"]  # a single font, because an SVG repeats the list of fonts at every label
DIGIT = 0.64  # width of a digit, as a share of the font size
MAX_EDGE_PT = 0.8
MARGIN = 1.003  # length of the time axis as a multiple of the makespan
LEFT, RIGHT, WIDTH_INCHES = 0.07, 0.99, 11.0


def save_timeline(timeline: Timeline, path: Path) -> None:
    """Draw each device's actions over time as boxes with micro-batch numbers.

    JellyBeanError for a format other than .svg, .png and .pdf.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    schedule = timeline.schedule
    with matplotlib.rc_context({**STYLE, "font.sans-serif": FONTS}):
        figure = Figure(figsize=(WIDTH_INCHES, 1.3 + 0.36 * schedule.devices), facecolor=SURFACE)
        axes = figure.subplots()
        style = _BoxStyle.of(timeline, 72 * WIDTH_INCHES * (RIGHT - LEFT) / MARGIN)
        for device in range(schedule.devices):
            _row(axes, timeline, device, style)
        axes.set_ylim(schedule.devices - 0.45, -0.55)
        axes.set_xlim(0, MARGIN * timeline.makespan_s)
        axes.set_yticks(range(schedule.devices), [f"device {device}" for device in range(schedule.devices)])
        axes.tick_params(axis="y", length=0)
        durations(axes.xaxis)
        axes.set_xlabel("time")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(_title(timeline), loc="left", fontsize=10)
        _legend(axes, timeline)
        figure.subplots_adjust(
            left=LEFT, right=RIGHT, top=1 - 0.3 / figure.get_figheight(), bottom=0.85 / figure.get_figheight()
        )
        save_figure(figure, path)


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    idle = "idle" if schedule.flushes else "idle in the steady state"
    return (
        f"{schedule.name}: {schedule.devices} devices, {schedule.microbatches} micro-batches, "
        f"{bubble_fraction(timeline):.1%} {idle}"
    )


def _row(axes: Any, timeline: Timeline, device: int, style: _BoxStyle) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    boxes: dict[str, list[tuple[float, float]]] = {}
    for timed in timeline.timed_actions(device):
        if timed.action.kind is ActionKind.UPDATE:
            axes.plot([timed.end_s] * 2, [device - 0.45, device + 0.45], color=INK, linewidth=1.4)
        if timed.action.kind not in _COLOURS or timed.end_s <= timed.start_s:
            continue
        width = timed.end_s - timed.start_s
        colour = _COLOURS[timed.action.kind][_is_second(timeline, timed.action)]
        boxes.setdefault(colour, []).append((timed.start_s, width))
        label = str(timed.action.microbatch)
        if style.fits(label, width):
            axes.text(timed.start_s + width / 2, device, label, ha="center", va="center", fontsize=style.font_pt)
    for colour, spans in boxes.items():
        top, low = device - 0.41, device + 0.41
        corners = [[(at, top), (at + width, top), (at + width, low), (at, low)] for at, width in spans]
        # A single path for all boxes of a colour makes the file far smaller.
        outline = Outline.make_compound_path_from_polys(np.array(corners))
        axes.add_patch(PathPatch(outline, facecolor=colour, edgecolor=SURFACE, linewidth=style.edge_pt))


@dataclass(frozen=True, slots=True)
class _BoxStyle:
    """Sizes in points. All labels have the size that fits the tightest box; boxes too small for a label stay empty."""

    pt_per_s: float
    font_pt: float
    edge_pt: float

    @classmethod
    def of(cls, timeline: Timeline, width_pt: float) -> _BoxStyle:
        """Sizes for a timeline that is `width_pt` points wide."""
        pt_per_s = width_pt / timeline.makespan_s if timeline.makespan_s else 0.0
        boxes = [
            ((timed.end_s - timed.start_s) * pt_per_s, len(str(timed.action.microbatch)))
            for device in range(timeline.schedule.devices)
            for timed in timeline.timed_actions(device)
            if timed.action.kind in _COLOURS and timed.end_s > timed.start_s
        ]
        if not boxes:
            return cls(pt_per_s, MAX_LABEL_PT, MAX_EDGE_PT)
        room_pt = min((box - MAX_EDGE_PT) / (digits * DIGIT) for box, digits in boxes)
        mean_pt = sum(box for box, _ in boxes) / len(boxes)
        return cls(pt_per_s, min(max(room_pt, MIN_LABEL_PT), MAX_LABEL_PT), min(MAX_EDGE_PT, mean_pt / 5))

    def fits(self, label: str, seconds: float) -> bool:
        room_pt = seconds * self.pt_per_s - MAX_EDGE_PT
        return len(label) * DIGIT * self.font_pt <= room_pt * (1 + 1e-9)


def _is_second(timeline: Timeline, action: Action) -> bool:
    return timeline.schedule.is_second(action)


def _legend(axes: Any, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    schedule = timeline.schedule
    kinds = dict.fromkeys(action.kind for _, action in schedule if action.kind in _COLOURS)
    second = "second copy" if len(schedule.device_of) > 1 else f"stages from {schedule.devices}"
    handles: list[Any] = [Patch(color=_COLOURS[kind][0], label=_NAMES[kind]) for kind in kinds]
    if schedule.chunks > 1:
        handles += [Patch(color=_COLOURS[kind][1], label=f"{_NAMES[kind]}, {second}") for kind in kinds]
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label="update"))
    axes.figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.06, 0), ncols=4, frameon=False, fontsize=8, labelcolor=SOFT
    )
