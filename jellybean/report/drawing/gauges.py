"""Geometry of the worker pools in the topology drawing: one vertical gauge per worker, filled by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean.display import formats
from jellybean.report.utilisation import WorkerUse
from jellybean.report.views import OperatorKey

GLYPH = 0.56  # upper estimate of the mean character width, in em
BAR_WIDTH, BAR_GAP, BAR_HEIGHT, POOL_TITLE = 26.0, 10.0, 48.0, 36.0
AXIS_WIDTH, LABEL_HEIGHT, LINE_GAP = 44.0, 15.0, 8.0
NUMBERED = 11.0  # least height of a segment in which the operator's number can be read
PADDING = 16.0


@dataclass(frozen=True, slots=True)
class Segment:
    """One operator's part of a worker's bar; the parts are stacked from the bottom. `label`: its number, or empty."""

    y: float
    height: float
    shade: str
    label: str


@dataclass(frozen=True, slots=True)
class WorkerBar:
    """One worker as a vertical bar, with its utilisation below it."""

    x: float
    y: float
    segments: tuple[Segment, ...]
    figure: str
    hint: str


@dataclass(frozen=True, slots=True)
class PoolPanel:
    """The used workers of one pool. `lines`: y of the top of each line of bars, at whose left the limit is written."""

    x: float
    y: float
    title: str
    subtitle: str
    bars: tuple[WorkerBar, ...]
    lines: tuple[float, ...]
    height: float


def pool_panels(
    workers: Sequence[WorkerUse], keys: Mapping[str, OperatorKey], left: float, top: float, width: float
) -> tuple[PoolPanel, ...]:
    """One panel per pool, from y = `top` downwards."""
    per_line = int((width - PADDING - AXIS_WIDTH + BAR_GAP) // (BAR_WIDTH + BAR_GAP))
    step = BAR_HEIGHT + LABEL_HEIGHT + LINE_GAP
    panels: list[PoolPanel] = []
    y = top
    for pool in dict.fromkeys(worker.pool for worker in workers):
        members = [worker for worker in workers if worker.pool == pool]
        lines = tuple(y + POOL_TITLE + line * step for line in range(-(-len(members) // per_line)))
        bars = tuple(
            _bar(worker, keys, left + AXIS_WIDTH + index % per_line * (BAR_WIDTH + BAR_GAP), lines[index // per_line])
            for index, worker in enumerate(members)
        )
        height = POOL_TITLE + len(lines) * step - LINE_GAP
        load = sum(worker.load for worker in members) / len(members)
        subtitle = f"{formats.usd(members[0].price_usd_per_h)} USD/h each · mean load {formats.percent(load)}"
        title = cut(f"{pool} × {len(members)}", width - PADDING, 12)
        panels.append(PoolPanel(left, y, title, subtitle, bars, lines, height))
        y += height + PADDING
    return tuple(panels)


def cut(text: str, width: float, size: float) -> str:
    """The text, cut with an ellipsis to fit `width` at font size `size`."""
    fits = max(1, int(width / (size * GLYPH)))
    return text if len(text) <= fits else text[: fits - 1] + "…"


def _bar(worker: WorkerUse, keys: Mapping[str, OperatorKey], x: float, y: float) -> WorkerBar:
    segments: list[Segment] = []
    bottom = y + BAR_HEIGHT
    for operator, load in worker.loads.items():
        key, height = keys[operator], min(load * BAR_HEIGHT, bottom - y)
        bottom -= height
        segments.append(Segment(bottom, height, key.shade, str(key.number) if height >= NUMBERED else ""))
    parts = ", ".join(f"{operator} {formats.percent(load)}" for operator, load in worker.loads.items())
    figure = formats.percent(worker.load)
    return WorkerBar(x, y, tuple(segments), figure, f"{worker.name}: utilisation {figure} ({parts})")
