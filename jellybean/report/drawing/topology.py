"""Geometry of the topology drawing: tiers as bands, placements as boxes, workers as gauges, flows as curves.

Coordinates are SVG user units; `templates/topology.svg.j2` draws them. `WIDE` has the workers next to the flow,
`NARROW` (for phones) below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean.display import formats
from jellybean.report.drawing.curves import Curve, Frame, Pill, draw_lines, labelled_flows
from jellybean.report.drawing.gauges import GLYPH, PADDING, PoolPanel, cut, pool_panels
from jellybean.report.drawing.graph import BoxKey, Rows, Slot, arrange, ends
from jellybean.report.report import Report
from jellybean.report.views import OperatorKey, operator_keys
from jellybean_solver import Flow, Placement, Plan

CARD_HEIGHT, SOURCE_HEIGHT = 76.0, 36.0
HEADER, ROW_GAP, FOLDED = 34.0, 44.0, 26.0
PASSAGE, LEAST_GAP = 14.0, 6.0
BOLD = 15.0  # font size whose regular characters are as wide as bold ones of 13 px
BADGE = 22.0  # width of the number before a box's title
TITLE_SIZE, NOTE_SIZE, CLEAR = 14.0, 12.0, 6.0  # font sizes of a band's header, and its distance from a curve


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
    key: OperatorKey | None
    hint: str


@dataclass(frozen=True, slots=True)
class Band:
    """The horizontal band of one tier. In the narrow shape, a last band has the workers of all tiers.

    A tier without sources and placements is folded to one line. `title_x` is the left end of the title, `note_x` the
    right end of the note (of a folded band the left end): no curve runs there.
    """

    y: float
    height: float
    title: str
    note: str
    panels: tuple[PoolPanel, ...]
    folded: bool = False
    title_x: float = PADDING
    note_x: float = PADDING


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
    plan, flows, keys = report.plan, report.breakdown.flows, operator_keys(report)
    rows = arrange(plan, flows, shape.columns)
    shape = _widened(shape, rows)
    tops: dict[int, float] = {}
    bands, y = _bands(report, rows, shape, keys, tops)
    xs = _columns(rows, shape)
    boxes = _boxes(plan, rows, xs, tops, shape, keys)
    passages = {
        (index, slot.flow): (xs[index, slot] + PASSAGE / 2, tops[index], tops[index] + _row_height(row))
        for index, row in enumerate(rows.slots)
        for slot in row
        if slot.flow is not None
    }
    frames = {key: Frame(box.x, box.y, box.width, box.height) for key, box in boxes.items()}
    band_ends = [(band.y, band.y + band.height) for band in bands]
    curves, pills = draw_lines(plan, flows, rows, frames, passages, band_ends, shape.flow_width)
    if not shape.workers_beside:  # draw the workers below the flow
        panels = pool_panels(report.workers, keys, PADDING, y + PADDING + HEADER, shape.panel_width)
        top, y = y + PADDING, max((panel.y + panel.height for panel in panels), default=y) + PADDING
        bands.append(Band(top, y - top, "workers", "", panels))
    return Drawing(
        shape, y, tuple(_titled(band, curves, shape) for band in bands), tuple(boxes.values()), curves, pills
    )


def _bands(
    report: Report, rows: Rows, shape: Shape, keys: Mapping[str, OperatorKey], tops: dict[int, float]
) -> tuple[list[Band], float]:
    """The tiers' bands and the bottom of the last. Writes row index -> y of the row's top into `tops`."""
    plan = report.plan
    gaps = _tier_gaps(rows, report.breakdown.flows, plan, shape)
    bands: list[Band] = []
    y = 0.0
    for tier, name in enumerate(plan.tiers):
        members = [index for index, at in enumerate(rows.tiers) if at == tier]
        title = formats.tier(name, plan.sites)
        if not members:
            bands.append(Band(y, FOLDED, title, "not used", (), folded=True))
            y += FOLDED + gaps[tier]
            continue
        flow_end = _stack(rows, members, y + HEADER, tops)
        workers = [worker for worker in report.workers if worker.tier == name]
        beside = (shape.flow_width, y + HEADER, shape.panel_width)
        panels = pool_panels(workers, keys, *beside) if shape.workers_beside else ()
        below = max((panel.y + panel.height for panel in panels), default=0.0)
        height = max(flow_end, below, y + HEADER) + PADDING - y
        share = next(share for share in report.breakdown.tiers if share.name == name)
        each = " each" if name in plan.sites else ""
        note = f"{len(workers)} worker{'' if len(workers) == 1 else 's'}{each}"
        note += f" · {formats.usd(share.usd_per_h)} USD/h"
        bands.append(Band(y, height, title, note, panels))
        y += height + gaps[tier]
    return bands, y - gaps[-1]


def _titled(band: Band, curves: Sequence[Curve], shape: Shape) -> Band:
    """The band with its header texts where no curve runs: the title as far left, the note as far right as possible.

    If the whole note does not fit between the curves, its second part is left out.
    """
    line = band.y + (FOLDED / 2 if band.folded else 18.0)
    crossed = [curve.x_at(line) for curve in curves if curve.points[0][1] < line + 8 and curve.points[-1][1] > line - 8]
    right = shape.width - PADDING
    title = cut(band.title, shape.width * 0.5, TITLE_SIZE)
    title_width = len(title) * TITLE_SIZE * GLYPH
    title_x = _free(crossed, title_width, PADDING, right - title_width)
    title_x = PADDING if title_x is None else title_x
    if band.folded:
        note_x = _free(crossed, len(band.note) * NOTE_SIZE * GLYPH, title_x + title_width + 8, right)
        return replace(band, title=title, title_x=title_x, note_x=right if note_x is None else note_x)
    crossed += [title_x + title_width * part for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for note in (band.note, band.note.partition(" · ")[0]):
        width = len(note) * NOTE_SIZE * GLYPH
        left = _free(crossed, width, right - width, title_x)
        if left is not None:
            return replace(band, title=title, note=note, title_x=title_x, note_x=left + width)
    return replace(band, title=title, note="", title_x=title_x)


def _free(taken: Sequence[float], width: float, start: float, end: float) -> float | None:
    """The first left end from `start` towards `end` at which a text of this width clears every x in `taken`."""
    step = 4.0 if end > start else -4.0
    for index in range(int((end - start) / step) + 1):
        x = start + index * step
        if not any(x - CLEAR <= other <= x + width + CLEAR for other in taken):
            return x
    return None


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
    per_line = 2 if shape.workers_beside else 1
    for tier in range(len(plan.tiers)):
        landing = [flow for flow in labelled_flows(flows) if rows.tiers[row_of[ends(flow)[1]]] == tier + 1]
        gaps.append(30.0 + 22.0 * -(-len(landing) // per_line))
    return gaps


def _placements(plan: Plan) -> Mapping[tuple[str, str], Placement]:
    """(Operator, pool) -> its placement there; of several variants all together."""
    found: dict[tuple[str, str], Placement] = {}
    for item in plan.placements:
        key = item.operator, item.pool
        if key in found:
            one = found[key]
            count = one.count + item.count
            item = replace(  # noqa: PLW2901
                one,
                variant=f"{one.variant} + {item.variant}",
                count=count,
                batch=max(one.batch, item.batch),
                rate_per_s=one.rate_per_s + item.rate_per_s,
                load=(one.load * one.count + item.load * item.count) / count,
            )
        found[key] = item
    return found


def _source_title(name: str, size: str, width: float) -> str:
    """The name of a source, cut to what `size` beside it leaves."""
    return cut(name, width - len(size) * 11 * GLYPH - 12, BOLD)


def _boxes(
    plan: Plan,
    rows: Rows,
    xs: Mapping[tuple[int, Slot], float],
    tops: Mapping[int, float],
    shape: Shape,
    keys: Mapping[str, OperatorKey],
) -> dict[BoxKey, Box]:
    sources = {source.name: source for source in plan.sources}
    placements = _placements(plan)
    inner = shape.card_width - 24
    found: dict[BoxKey, Box] = {}
    for (index, slot), x in xs.items():
        if slot.key is None:
            continue
        name, pool = slot.key
        if pool is None:
            source = sources[name]
            each = " each" if source.tier in plan.sites else ""
            rate = f"{formats.plain(source.rate_per_s)}/s{each}"
            size = f"{rate} × {formats.size(source.message_bytes)}"
            hint = f"source {name}: {size}, {source.arrivals.value} arrivals"
            title = _source_title(name, size, inner)
            if title != name:  # the name says more than the size of its messages, which the hint has too
                title, size = _source_title(name, rate, inner), rate
            y = tops[index] + (_row_height(rows.slots[index]) - SOURCE_HEIGHT) / 2
            found[slot.key] = Box(x, y, shape.card_width, SOURCE_HEIGHT, "source", title, "", "", size, 0.0, None, hint)
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
            x, tops[index], shape.card_width, CARD_HEIGHT, "placement", cut(name, inner - BADGE, BOLD),
            cut(item.variant, inner - len(rate) * 12 * GLYPH - 8, 12), cut(note, inner, 11), rate, item.load,
            keys[name], hint,
        )  # fmt: skip
    return found
