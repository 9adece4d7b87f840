"""Geometry of the topology drawing: tiers as bands, placements as boxes, workers as bars, flows as curves.

Coordinates are SVG user units; `templates/topology.svg.j2` draws them. `WIDE` has the workers next to the flow,
`NARROW` (for phones) below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean.display import formats
from jellybean.report.curves import Curve, Frame, Pill, draw_lines, labelled_flows
from jellybean.report.graph import BoxKey, Rows, Slot, arrange, ends
from jellybean.report.report import Report, WorkerUse
from jellybean_solver import Flow, Plan

GLYPH = 0.56  # upper estimate of the mean character width, in em
CARD_HEIGHT, SOURCE_HEIGHT = 76.0, 36.0
HEADER, ROW_GAP, PADDING = 34.0, 44.0, 16.0
PASSAGE, LEAST_GAP = 14.0, 6.0
BOLD = 15.0  # font size whose regular characters are as wide as bold ones of 13 px
BAR_WIDTH, BAR_GAP, BAR_HEIGHT, POOL_TITLE = 16.0, 6.0, 48.0, 34.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the drawing, in SVG user units, and boxes per row (`columns`) for one type of screen."""

    name: str
    width: float
    card_width: float
    columns: int
    workers_beside: bool
    gap: float

    @property
    def panel_width(self) -> float:
        return 268.0 if self.workers_beside else self.width - 2 * PADDING

    @property
    def flow_width(self) -> float:
        return self.width - (self.panel_width + PADDING if self.workers_beside else 0.0)


WIDE = Shape("wide", 1080.0, 212.0, 3, True, 32.0)
NARROW = Shape("narrow", 400.0, 176.0, 2, False, 14.0)


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a source or placement. Texts are cut to the box width; `hint` is the tooltip with the full text."""

    x: float
    y: float
    width: float
    height: float
    kind: str  # source, placement
    title: str
    subtitle: str
    note: str
    rate: str
    load: float
    colour: int
    hint: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One operator's part of a worker's bar; the parts are stacked from the bottom."""

    y: float
    height: float
    colour: int


@dataclass(frozen=True, slots=True)
class WorkerBar:
    """One worker as a vertical bar."""

    x: float
    y: float
    segments: tuple[Segment, ...]
    hint: str


@dataclass(frozen=True, slots=True)
class PoolPanel:
    """The used workers of one pool."""

    x: float
    y: float
    title: str
    subtitle: str
    bars: tuple[WorkerBar, ...]
    height: float


@dataclass(frozen=True, slots=True)
class Band:
    """The horizontal band of one tier. In the narrow shape, a last band has the workers of all tiers."""

    y: float
    height: float
    title: str
    note: str
    panels: tuple[PoolPanel, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """All elements of a drawing."""

    shape: Shape
    height: float
    bands: tuple[Band, ...]
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    pills: tuple[Pill, ...]


def draw(report: Report, shape: Shape) -> Drawing:
    """Lay out the drawing of a report's plan; the result is deterministic."""
    plan, flows = report.plan, report.breakdown.flows
    rows = arrange(plan, flows, shape.columns)
    shape = _widened(shape, rows)
    xs = _columns(rows, shape)
    gaps = _tier_gaps(rows, flows, plan, shape)
    bands: list[Band] = []
    tops: dict[int, float] = {}
    y = 0.0
    for tier, name in enumerate(plan.tiers):
        members = [index for index, at in enumerate(rows.tiers) if at == tier]
        flow_end = _stack(rows, members, y + HEADER, tops)
        workers = [worker for worker in report.workers if worker.tier == name]
        panels = _panels(plan, workers, shape, y + HEADER) if shape.workers_beside else ()
        below = max((panel.y + panel.height for panel in panels), default=0.0)
        height = max(flow_end, below, y + HEADER) + PADDING - y
        share = next(share for share in report.breakdown.tiers if share.name == name)
        each = " each" if name in plan.sites else ""
        note = f"{len(workers)} worker{'' if len(workers) == 1 else 's'}{each}"
        note += f" · {formats.usd(share.compute_usd_per_h)} USD/h"
        bands.append(Band(y, height, formats.tier(name, plan.sites), note, panels))
        y += height + gaps[tier]
    y -= gaps[-1]
    boxes = _boxes(plan, rows, xs, tops, shape)
    passages = {
        (index, slot.flow): (xs[index, slot] + PASSAGE / 2, tops[index], tops[index] + _row_height(row))
        for index, row in enumerate(rows.slots)
        for slot in row
        if slot.flow is not None
    }
    frames = {key: Frame(box.x, box.y, box.width, box.height) for key, box in boxes.items()}
    band_ends = [(band.y, band.y + band.height) for band in bands]
    curves, pills = draw_lines(plan, flows, rows, frames, passages, band_ends)
    if not shape.workers_beside:  # draw the workers below the flow
        panels = _panels(plan, report.workers, shape, y + PADDING + HEADER)
        top, y = y + PADDING, max((panel.y + panel.height for panel in panels), default=y) + PADDING
        bands.append(Band(top, y - top, "workers", "", panels))
    return Drawing(shape, y, tuple(bands), tuple(boxes.values()), curves, pills)


def cut(text: str, width: float, size: float) -> str:
    """The text, cut with an ellipsis to fit `width` at font size `size`."""
    fits = max(1, int(width / (size * GLYPH)))
    return text if len(text) <= fits else text[: fits - 1] + "…"


def _width(slot: Slot, shape: Shape) -> float:
    return PASSAGE if slot.key is None else shape.card_width


def _widened(shape: Shape, rows: Rows) -> Shape:
    """The shape, made wider if its fullest row needs it; the SVG is then scaled down as a whole."""
    fullest = max(sum(_width(slot, shape) + LEAST_GAP for slot in row) for row in rows.slots) + 2 * PADDING
    return replace(shape, width=shape.width + max(0.0, fullest - shape.flow_width))


def _columns(rows: Rows, shape: Shape) -> dict[tuple[int, Slot], float]:
    """(row, slot) -> x of the slot's left edge; rows are centred, with smaller gaps if they are full."""
    found: dict[tuple[int, Slot], float] = {}
    for index, row in enumerate(rows.slots):
        total = sum(_width(slot, shape) for slot in row)
        room = shape.flow_width - 2 * PADDING - total
        gap = min(shape.gap, room / max(1, len(row) - 1))
        x = (shape.flow_width - total - gap * (len(row) - 1)) / 2
        for slot in row:
            found[index, slot] = x
            x += _width(slot, shape) + gap
    return found


def _row_height(row: Sequence[Slot]) -> float:
    return CARD_HEIGHT if any(slot.key is not None and slot.key[1] is not None for slot in row) else SOURCE_HEIGHT


def _stack(rows: Rows, members: Sequence[int], top: float, tops: dict[int, float]) -> float:
    """Stack the rows of one tier (`members`: row indices) from y = `top`; returns the bottom of the last row.

    Writes row index -> y of the row's top into `tops`.
    """
    y = top
    for position, index in enumerate(members):
        tops[index] = y
        y += _row_height(rows.slots[index]) + (ROW_GAP if position < len(members) - 1 else 0.0)
    return y


def _tier_gaps(rows: Rows, flows: Sequence[Flow], plan: Plan, shape: Shape) -> list[float]:
    """Height of the gap below each tier's band, with space for the labels of the flows that end in the next tier."""
    row_of = rows.row_of()
    gaps: list[float] = []
    per_line = 3 if shape.workers_beside else 2
    for tier in range(len(plan.tiers)):
        landing = [flow for flow in labelled_flows(flows) if rows.tiers[row_of[ends(flow)[1]]] == tier + 1]
        gaps.append(30.0 + 22.0 * -(-len(landing) // per_line))
    return gaps


def _boxes(
    plan: Plan, rows: Rows, xs: Mapping[tuple[int, Slot], float], tops: Mapping[int, float], shape: Shape
) -> dict[BoxKey, Box]:
    sources = {source.name: source for source in plan.sources}
    placements = {(item.operator, item.pool): item for item in plan.placements}
    colour = {operator.name: index for index, operator in enumerate(plan.operators)}
    inner = shape.card_width - 24
    found: dict[BoxKey, Box] = {}
    for (index, slot), x in xs.items():
        if slot.key is None:
            continue
        name, pool = slot.key
        if pool is None:
            source = sources[name]
            each = " each" if source.tier in plan.sites else ""
            size = f"{formats.plain(source.rate_per_s)}/s{each} × {formats.size(source.message_bytes)}"
            title = cut(name, inner - len(size) * 11 * GLYPH - 12, BOLD)
            hint = f"source {name}: {size}, {source.arrivals.value} arrivals"
            y = tops[index] + (_row_height(rows.slots[index]) - SOURCE_HEIGHT) / 2
            found[slot.key] = Box(x, y, shape.card_width, SOURCE_HEIGHT, "source", title, "", "", size, 0.0, -1, hint)
            continue
        item = placements[name, pool]
        rate = formats.rate(item.rate_per_s)
        note = f"{formats.percent(item.load)} of {pool} × {item.count}"
        each = f" in each {item.tier}" if item.sites > 1 else ""
        hint = f"{name} ({item.variant}) on {item.count} of {pool}{each}: {rate}, "
        hint += f"utilisation {formats.percent(item.load)}"
        if item.batch > 1:
            hint += f", batches of up to {item.batch}"
        found[slot.key] = Box(
            x, tops[index], shape.card_width, CARD_HEIGHT, "placement", cut(name, inner, BOLD),
            cut(item.variant, inner - len(rate) * 12 * GLYPH - 8, 12), cut(note, inner, 11), rate, item.load,
            colour[name], hint,
        )  # fmt: skip
    return found


def _panels(plan: Plan, workers: Sequence[WorkerUse], shape: Shape, top: float) -> tuple[PoolPanel, ...]:
    left = shape.flow_width if shape.workers_beside else PADDING
    per_line = int((shape.panel_width - PADDING + BAR_GAP) // (BAR_WIDTH + BAR_GAP))
    found: list[PoolPanel] = []
    y = top
    for pool in dict.fromkeys(worker.pool for worker in workers):
        members = [worker for worker in workers if worker.pool == pool]
        bars = tuple(
            _bar(
                plan,
                worker,
                left + (index % per_line) * (BAR_WIDTH + BAR_GAP),
                y + POOL_TITLE + (index // per_line) * (BAR_HEIGHT + 8),
            )
            for index, worker in enumerate(members)
        )
        lines = -(-len(members) // per_line)
        height = POOL_TITLE + lines * (BAR_HEIGHT + 8) - 8
        load = sum(worker.load for worker in members) / len(members)
        subtitle = f"{formats.usd(members[0].price_usd_per_h)} USD/h each · mean load {formats.percent(load)}"
        title = cut(f"{pool} × {len(members)}", shape.panel_width - PADDING, 12)
        found.append(PoolPanel(left, y, title, subtitle, bars, height))
        y += height + PADDING
    return tuple(found)


def _bar(plan: Plan, worker: WorkerUse, x: float, y: float) -> WorkerBar:
    colour = {operator.name: index for index, operator in enumerate(plan.operators)}
    segments: list[Segment] = []
    bottom = y + BAR_HEIGHT
    for operator, load in worker.loads.items():
        height = min(load * BAR_HEIGHT, bottom - y)
        bottom -= height
        segments.append(Segment(bottom, height, colour[operator]))
    parts = ", ".join(f"{operator} {formats.percent(load)}" for operator, load in worker.loads.items())
    return WorkerBar(x, y, tuple(segments), f"{worker.name}: utilisation {formats.percent(worker.load)} ({parts})")
