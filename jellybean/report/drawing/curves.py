"""Curves and labels of the data flows in the topology drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from jellybean.display import formats
from jellybean.report.drawing.graph import BoxKey, Rows, ends
from jellybean_solver import Edge, EdgeKind, Flow, Plan

Point = tuple[float, float]
CHARACTER_WIDTH = 11 * 0.56  # mean width of a character in a label
SHIFTS = (0.0, -0.15, 0.15, -0.3, 0.3, -0.4, 0.4, -0.47, 0.47)  # of a label beside its curve, in widths
ROUNDS = 8
PILL_HALF, PILL_STEP = 9.0, 6.0  # half the height of a label; between the heights at which it may be placed
THIN, THICK = 1.5, 5.0
# Up to LABEL_ALL flows over links are all labelled; of more flows, only those with at least this share of the bytes.
LABEL_ALL, LABEL_SHARE = 4, 0.005
SPREAD = 0.6  # share of a box's width over which the ends of its curves are spread


@dataclass(frozen=True, slots=True)
class Frame:
    """Position (top left corner) and size of a box, in SVG user units."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A flow as a curve from top to bottom. `crosses`: True if the flow uses a link between tiers."""

    points: tuple[Point, ...]
    width: float
    crosses: bool
    hint: str

    @property
    def path(self) -> str:
        """SVG path data: straight inside passages, curved between them."""
        x, y = self.points[0]
        parts = [f"M{x:.1f} {y:.1f}"]
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
        return " ".join(parts)

    def x_at(self, y: float) -> float:
        """x of the curve at height y, by bisection: y is monotonic along each piece."""
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            if y0 <= y <= y1 and y1 > y0:
                low, high = 0.0, 1.0
                middle = (y0 + y1) / 2
                for _ in range(24):
                    t = (low + high) / 2
                    low, high = (t, high) if _bezier(y0, middle, middle, y1, t) < y else (low, t)
                return _bezier(x0, x0, x1, x1, low)
        return self.points[-1][0]


@dataclass(frozen=True, slots=True)
class Pill:
    """A label on a curve; x and y are its centre."""

    x: float
    y: float
    text: str
    width: float
    crosses: bool


def draw_lines(
    plan: Plan,
    flows: Sequence[Flow],
    rows: Rows,
    frames: Mapping[BoxKey, Frame],
    passages: Mapping[tuple[int, int], tuple[float, float, float]],
    bands: Sequence[tuple[float, float]],
    right: float,
) -> tuple[tuple[Curve, ...], tuple[Pill, ...]]:
    """The curves and the labels of all flows.

    `passages`: (index of row, index of flow) -> (x, top, bottom) of the gap through which the flow crosses the row.
    `bands`: (top, bottom) of each tier. `right`: right end of the labels.
    """
    edges = {(edge.upstream, edge.downstream): edge for operator in plan.operators for edge in operator.inputs}
    busiest = max((flow.bytes_per_s for flow in flows), default=0.0) or 1.0
    row_of, labelled = rows.row_of(), set(labelled_flows(flows))
    layout = _Layout(flows, row_of, frames, passages)
    end_xs = layout.end_positions()
    curves: list[Curve] = []
    labels_by_tier: dict[int, list[tuple[Curve, str]]] = {}
    pills: list[Pill] = []
    for index, flow in enumerate(flows):
        _, downstream = ends(flow)
        kind = _kind(edges[flow.upstream, flow.downstream])
        points = tuple(layout.points(index, end_xs))
        width = THIN + (THICK - THIN) * sqrt(flow.bytes_per_s / busiest)
        curve = Curve(points, width, flow.crosses, _hint(flow, kind))
        curves.append(curve)
        if flow in labelled:
            labels_by_tier.setdefault(rows.tiers[row_of[downstream]], []).append((curve, _text(flow, kind)))
        elif kind and not flow.crosses:
            y = (points[-1][1] + points[-2][1]) / 2
            pills.append(Pill(curve.x_at(y), y, kind, len(kind) * CHARACTER_WIDTH + 14, False))
    for tier, labels in sorted(labels_by_tier.items()):
        pills += _place_labels(labels, curves, bands[tier - 1][1], bands[tier][0], right)
    return tuple(curves), tuple(pills)


def labelled_flows(flows: Sequence[Flow]) -> tuple[Flow, ...]:
    """Flows that get a traffic label: those over links between tiers, and if there are many, only the larger ones."""
    crossing = [flow for flow in flows if flow.crosses]
    least = LABEL_SHARE * sum(flow.bytes_per_s for flow in crossing) if len(crossing) > LABEL_ALL else 0.0
    return tuple(flow for flow in crossing if flow.bytes_per_s >= least)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where boxes are and flows pass; `row_of`, `frames` by box, `passages` by (row, flow index) as of `draw_lines`."""

    flows: Sequence[Flow]
    row_of: Mapping[BoxKey, int]
    frames: Mapping[BoxKey, Frame]
    passages: Mapping[tuple[int, int], tuple[float, float, float]]

    def end_positions(self) -> dict[tuple[int, int], float]:
        """(flow index, 0) -> x at the upstream box, (flow index, 1) -> x at the downstream box.

        The ends of the curves of one box are spread over the box's width.
        """
        xs: dict[tuple[int, int], float] = {}
        for key, frame in self.frames.items():
            for side in (0, 1):
                members = [index for index, flow in enumerate(self.flows) if ends(flow)[side] == key]
                towards = {index: self._next_x(index, side) for index in members}
                ordered = sorted(members, key=towards.__getitem__)
                for position, index in enumerate(ordered):
                    offset = (position + 0.5) / len(ordered) - 0.5
                    xs[index, side] = frame.x + frame.width * (0.5 + SPREAD * offset)
        return xs

    def _next_x(self, index: int, side: int) -> float:
        """x of the passage or box that follows one end of a curve; `side`: 0 for the upstream end, 1 for the other."""
        here, there = ends(self.flows[index])[side], ends(self.flows[index])[1 - side]
        step = 1 if side == 0 else -1
        passage = self.passages.get((self.row_of[here] + step, index))
        return passage[0] if passage is not None else self.frames[there].x + self.frames[there].width / 2

    def points(self, index: int, end_xs: Mapping[tuple[int, int], float]) -> list[Point]:
        """Points of a curve: from the bottom of the upstream box through its passages to the top of the next box."""
        upstream, downstream = ends(self.flows[index])
        above, below = self.frames[upstream], self.frames[downstream]
        points = [(end_xs[index, 0], above.y + above.height)]
        for row in range(self.row_of[upstream] + 1, self.row_of[downstream]):
            x, top, bottom = self.passages[row, index]
            points += [(x, top), (x, bottom)]
        points.append((end_xs[index, 1], below.y))
        return points


def _place_labels(
    labels: Sequence[tuple[Curve, str]], curves: Sequence[Curve], top: float, bottom: float, right: float
) -> list[Pill]:
    """Place labels on their curves between `top` and `bottom` (the gap between two bands).

    Each label goes where it overlaps the fewest labels, then the fewest other curves, then nearest to its curve. Labels
    are placed again in view of all others until none moves.
    """
    count = max(1, int((bottom - top - 30) // PILL_STEP) + 1)
    lines = [top + 15 + PILL_STEP * index for index in range(count)]
    options = [_options(curve, text, lines, right) for curve, text in labels]
    covered = [
        {pill: sum(_covers(pill, other) for other in curves if other is not curve) for pill in pills}
        for (curve, _), pills in zip(labels, options, strict=True)
    ]
    placed: dict[int, Pill] = {}
    for _ in range(ROUNDS):
        before = dict(placed)
        for index, pills in enumerate(options):
            others = [pill for other, pill in placed.items() if other != index]
            hidden = [(_hidden(pill, others), covered[index][pill], place) for place, pill in enumerate(pills)]
            placed[index] = pills[min(hidden)[2]]
        if placed == before:
            break
    return list(placed.values())


def _options(curve: Curve, text: str, lines: Sequence[float], right: float) -> list[Pill]:
    """Places of a label along its curve, the best first; then those of its cost alone, which needs less room."""
    pills: list[Pill] = []
    for words in dict.fromkeys((text, text.rpartition(" · ")[2])):
        width = len(words) * CHARACTER_WIDTH + 16
        places = [(_inside(curve.x_at(y) + shift * width, width, right), y) for shift in SHIFTS for y in lines]
        pills += [Pill(x, y, words, width, True) for x, y in places]
    return pills


def _hidden(pill: Pill, placed: Sequence[Pill]) -> int:
    return sum(_overlap(pill, other) for other in placed)


def _covers(pill: Pill, curve: Curve) -> bool:
    """Whether the curve runs under the label."""
    if not curve.points[0][1] < pill.y < curve.points[-1][1]:
        return False
    heights = (pill.y - PILL_HALF, pill.y, pill.y + PILL_HALF)
    return any(abs(curve.x_at(y) - pill.x) < pill.width / 2 + 3 for y in heights)


def _inside(x: float, width: float, right: float) -> float:
    return max(width / 2 + 4, min(x, right - width / 2 - 4))


def _overlap(one: Pill, other: Pill) -> bool:
    return abs(one.y - other.y) < 2 * PILL_HALF + 2 and abs(one.x - other.x) < (one.width + other.width) / 2 + 4


def _text(flow: Flow, kind: str) -> str:
    text = f"{formats.byte_rate(flow.bytes_per_s)} · {formats.usd(flow.cost_usd_per_h)} USD/h"
    return f"{kind} · {text}" if kind else text


def _hint(flow: Flow, kind: str) -> str:
    text = (
        f"{flow.upstream} to {flow.downstream}: {formats.rate(flow.messages_per_s)}, "
        f"{formats.byte_rate(flow.bytes_per_s)}"
    )
    text += f", {kind}" if kind else ""
    return text + (f", {formats.usd(flow.cost_usd_per_h)} USD/h" if flow.crosses else "")


def _kind(edge: Edge) -> str:
    if edge.kind is EdgeKind.EACH:
        return ""
    return "gather" if edge.kind is EdgeKind.GATHER else f"× {formats.plain(edge.ratio)}"


def _bezier(p0: float, p1: float, p2: float, p3: float, t: float) -> float:
    s = 1 - t
    return s * s * s * p0 + 3 * s * s * t * p1 + 3 * s * t * t * p2 + t * t * t * p3
