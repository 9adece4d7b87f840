"""What a project has served and what that cost, from its ledger, as the report's page shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jellybean.display import formats
from jellybean.ledger.events import EventKind
from jellybean.ledger.questions import By, CostLine, Span, TimelinePoint
from jellybean.ledger.source import LedgerSource

DAYS = 7
PIECES = 60  # of time in a curve, at most
MOST_LINES = 8  # of operators or clients that are named
_DAY_S = 86_400.0
_FINE_S, _FINE_FOR_S = 10, 600.0  # pieces of a short time; later intervals are added up to five minutes
_PIECES_S = (300, 1_800, 3_600, 10_800)  # a curve has the shortest of these that makes at most PIECES
_HEIGHT, _TOP = 27.0, 3.0  # of a curve, in its own units: from the bottom, and the gap at the top


@dataclass(frozen=True, slots=True)
class ServedCurve:
    """One figure over time, as points of an SVG polyline of 100 by 30. `marks`: positions where another plan began."""

    label: str
    points: str
    lowest: str
    highest: str
    last: str
    marks: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """The last `DAYS` days. `operators`, `clients`: the dearest, with the sum of the others as the last."""

    since_unix_s: float
    until_unix_s: float
    usd: float
    answered: int
    failed: int
    operators: tuple[CostLine, ...]
    clients: tuple[CostLine, ...]
    curves: tuple[ServedCurve, ...]
    plans: int  # that took over in this time

    @property
    def usd_per_thousand(self) -> float | None:
        """USD for a thousand answered requests."""
        return 1_000 * self.usd / self.answered if self.answered else None

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values, without the curves."""
        found = asdict(self)
        del found["curves"]
        return found


def served(ledger: LedgerSource, now_unix_s: float) -> Served | None:
    """What was served in the last days; None if nothing was."""
    span = Span(now_unix_s - DAYS * _DAY_S)
    points = ledger.timeline(_FINE_S, span)
    if not points:
        return None
    begin_s, end_s = points[0].begin_s, points[-1].begin_s + _FINE_S
    if end_s - begin_s > _FINE_FOR_S:
        piece_s = next((size for size in _PIECES_S if (end_s - begin_s) / size <= PIECES), _PIECES_S[-1])
        points = ledger.timeline(piece_s, span)
    changes = [event.at_unix_s for event in ledger.events(span) if event.kind is EventKind.PLAN]
    changes = [at_s for at_s in changes if begin_s <= at_s <= end_s]
    operators, clients = (_dearest(ledger.cost(by, span)) for by in (By.OPERATOR, By.CLIENT))
    return Served(
        since_unix_s=begin_s,
        until_unix_s=end_s,
        usd=math.fsum(point.usd for point in points),
        answered=sum(point.answered for point in points),
        failed=sum(point.failed for point in points),
        operators=operators,
        clients=clients,
        curves=tuple(_curves(points, changes)),
        plans=len(changes),
    )


def _dearest(lines: Sequence[CostLine]) -> tuple[CostLine, ...]:
    if len(lines) <= MOST_LINES:
        return tuple(lines)
    rest = lines[MOST_LINES - 1 :]
    sums = (sum(getattr(line, name) for line in rest) for name in ("workers_usd", "traffic_usd", "done", "failed"))
    return (*lines[: MOST_LINES - 1], CostLine(f"{len(rest)} others", *sums))


def _curves(points: Sequence[TimelinePoint], changes: Sequence[float]) -> list[ServedCurve]:
    """The curves that have at least three points."""
    costs = [(point.begin_s, 3600 * point.usd / point.paid_s) for point in points if point.paid_s > 0]
    rates = [(point.begin_s, point.answered / point.paid_s) for point in points if point.paid_s > 0]
    late = [(point.begin_s, point.latency_p99_s) for point in points if point.latency_p99_s is not None]
    lost = [(point.begin_s, 100.0 * point.failed / max(1, point.answered + point.failed)) for point in points]
    found = [
        _curve("USD per hour", costs, formats.usd, changes),
        _curve("Answered per second", rates, formats.rate, changes),
        _curve("Latency p99", late, formats.duration, changes),
        _curve("Failed", lost, lambda share: f"{share:.3g} %", changes) if any(share for _, share in lost) else None,
    ]
    return [curve for curve in found if curve is not None]


def _curve(
    label: str, values: Sequence[tuple[float, float]], show: Callable[[float], str], changes: Sequence[float]
) -> ServedCurve | None:
    finite = [(at_s, value) for at_s, value in values if math.isfinite(value)]
    if len(finite) < 3:
        return None
    begin_s, width_s = finite[0][0], finite[-1][0] - finite[0][0]
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    scale = (_HEIGHT - _TOP) / ((high - low) or 1.0)
    points = " ".join(
        f"{100 * (at_s - begin_s) / width_s:.1f},{_HEIGHT - scale * (value - low):.1f}" for at_s, value in finite
    )
    marks = tuple(min(100.0, max(0.0, 100 * (at_s - begin_s) / width_s)) for at_s in changes)
    return ServedCurve(label, points, show(low), show(high), show(finite[-1][1]), marks)
