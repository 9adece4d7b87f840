"""Draws a timeline in the terminal: one line per device, one cell per time slot, as papers on pipelining do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from jellybean.display import formats
from jellybean_solver.pipeline import Action, ActionKind, Timeline

MAX_CELLS = 240  # a line with more cells is truncated, with a mark at its end
TRUNCATED = " ..."
_STYLES = {
    ActionKind.FORWARD: ("black on bright_cyan", "black on cyan"),
    ActionKind.BACKWARD: ("black on bright_green", "black on green"),
    ActionKind.INPUT_GRADIENT: ("black on bright_green", "black on green"),
    ActionKind.WEIGHT_GRADIENT: ("black on bright_yellow", "black on yellow"),
}


def draw_timeline(timeline: Timeline, *, columns: int | None = None) -> Text:
    """The actions of all devices over time as text. A cell shows the micro-batch number; a dot is an idle slot.

    Second stages and second replicas are darker. The length of a slot is the greatest common divisor of the durations,
    or a quarter of the shortest duration if they have none. If lines with numbers would be wider than `columns`, cells
    show the action's letter; lines that are still too long are truncated.
    """
    slot_s = slot_seconds(timeline)
    width = len(str(timeline.schedule.microbatches - 1)) + 1
    slots = round(timeline.makespan_s / slot_s)
    cells = min(MAX_CELLS, slots)
    if columns is not None:
        room = max(1, columns - len(f"device {timeline.schedule.devices - 1} "))
        if cells * width > room:
            width = 1
        cells = min(cells, room if slots <= room else max(1, room - len(TRUNCATED)))
    drawing = Text(no_wrap=True)
    for device in range(timeline.schedule.devices):
        drawing.append(f"device {device:<{len(str(timeline.schedule.devices - 1))}} ")
        at = 0
        for action, start, end in _cells(timeline, device, slot_s, cells):
            drawing.append(_idle(width, start - at), style="dim")
            drawing.append(_cell(action, width, end - start), style=_style(timeline, action))
            at = end
        drawing.append(_idle(width, cells - at), style="dim")
        drawing.append("\n" if cells * slot_s > timeline.makespan_s - slot_s / 2 else f"{TRUNCATED}\n")
    drawing.append("F ", style=_STYLES[ActionKind.FORWARD][0])
    drawing.append(" forward  ")
    if any(action.kind is ActionKind.WEIGHT_GRADIENT for action in timeline.schedule.actions[0]):
        drawing.append("I ", style=_STYLES[ActionKind.INPUT_GRADIENT][0])
        drawing.append(" input gradient  ")
        drawing.append("W ", style=_STYLES[ActionKind.WEIGHT_GRADIENT][0])
        drawing.append(" weight gradient  ")
    else:
        drawing.append("B ", style=_STYLES[ActionKind.BACKWARD][0])
        drawing.append(" backward  ")
    drawing.append(f"one cell: {formats.axis_duration(slot_s)}")
    return drawing


def slot_seconds(timeline: Timeline) -> float:
    """Length in seconds of a time slot, which is one cell of the drawing."""
    times = {
        round(end - start, 9)
        for starts, ends in zip(timeline.starts_s, timeline.ends_s, strict=True)
        for start, end in zip(starts, ends, strict=True)
        if end - start > 1e-9
    }
    if not times:
        return 1.0
    shortest = min(times)
    for parts in range(1, 9):
        if all(math.isclose(time * parts / shortest, round(time * parts / shortest), abs_tol=1e-6) for time in times):
            return shortest / parts
    return shortest / 4


def _cells(timeline: Timeline, device: int, slot_s: float, most: int) -> Iterator[tuple[Action, int, int]]:
    for timed in timeline.timed_actions(device):
        start, end = round(timed.start_s / slot_s), min(most, round(timed.end_s / slot_s))
        if end > start:
            yield timed.action, start, end


def _cell(action: Action, width: int, slots: int) -> str:
    if width == 1:
        return action.kind.letter.ljust(slots, "─")
    return str(action.microbatch).ljust(width * slots - 1, "─" if slots > 1 else " ") + " "


def _idle(width: int, slots: int) -> str:
    return ("·" + " " * (width - 1)) * slots


def _style(timeline: Timeline, action: Action) -> str:
    return _STYLES[action.kind][timeline.schedule.is_second(action)] if action.kind in _STYLES else ""
