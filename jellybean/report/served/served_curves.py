"""Curves of what was served over time: one axis of time for all, so that cost, rate, latency and accuracy compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jellybean.display import formats
from jellybean.ledger.queries.accuracy_timeline import AccuracyPoint
from jellybean.ledger.queries.questions import TimelinePoint

FEWEST = 3  # points of a curve
_HEIGHT, _TOP = 27.0, 3.0  # of a curve, in its own units: from the bottom, and the gap at the top


@dataclass(frozen=True, slots=True)
class Step:
    """A predicted value from one Unix time to another."""

    begin_s: float
    end_s: float
    value: float


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time that all curves show, in pieces of `piece_s`. `changes`: Unix times at which another plan took over."""

    begin_s: float
    end_s: float
    piece_s: float
    changes: tuple[float, ...] = ()

    def x(self, at_s: float) -> float:
        """Position of a Unix time, from 0 to 100."""
        return min(100.0, max(0.0, 100 * (at_s - self.begin_s) / ((self.end_s - self.begin_s) or 1.0)))

    def middle_x(self, begin_s: float, piece_s: float | None = None) -> float:
        """Position of the middle of the piece of time that begins then."""
        return self.x(begin_s + (piece_s or self.piece_s) / 2)

    @property
    def marks(self) -> tuple[float, ...]:
        """Positions at which another plan took over."""
        return tuple(self.x(at_s) for at_s in self.changes)


@dataclass(frozen=True, slots=True)
class ServedCurve:
    """One figure over time, in an SVG of 100 by 30: `points` of a polyline, `interval` of a polygon around it.

    `predicted`: path of what the plans that were served then predicted; empty if unknown, as an `interval` that there
    is none of. `marks`: positions where another plan began.
    """

    label: str
    points: str
    lowest: str
    highest: str
    last: str
    marks: tuple[float, ...]
    interval: str = ""
    predicted: str = ""


@dataclass(frozen=True, slots=True)
class _Value:
    """A value at a position, from `low` to `high`."""

    x: float
    value: float
    low: float
    high: float


def cost_curve(points: Sequence[TimelinePoint], axis: TimeAxis, predicted: Sequence[Step]) -> ServedCurve | None:
    """The curve of the cost per hour for which workers were paid; None with fewer than `FEWEST` points."""
    costs = [(point.begin_s, 3600 * point.usd / point.paid_s) for point in points if point.paid_s > 0]
    return _curve("USD per hour", _exact(costs, axis), formats.usd, axis, predicted)


def request_curves(points: Sequence[TimelinePoint], axis: TimeAxis) -> list[ServedCurve]:
    """Curves of answers, latency and, if any failed, failures; those that have at least `FEWEST` points."""
    rates = [(point.begin_s, point.answered / point.paid_s) for point in points if point.paid_s > 0]
    late = [(point.begin_s, point.latency_p99_s) for point in points if point.latency_p99_s is not None]
    lost = [(point.begin_s, 100.0 * point.failed / max(1, point.answered + point.failed)) for point in points]
    found = [
        _curve("Answered per second", _exact(rates, axis), formats.rate, axis),
        _curve("Latency p99", _exact(late, axis), formats.duration, axis),
    ]
    if any(share for _, share in lost):
        found.append(_curve("Failed", _exact(lost, axis), lambda share: f"{share:.3g} %", axis))
    return [curve for curve in found if curve is not None]


def accuracy_curve(
    label: str, points: Sequence[AccuracyPoint], piece_s: float, axis: TimeAxis, predicted: Sequence[Step]
) -> ServedCurve | None:
    """The curve of the accuracy by labels in pieces of `piece_s`, with 95 % intervals; None with too few points."""
    values = [
        _Value(axis.middle_x(point.begin_s, piece_s), own.accuracy, own.low, own.high)
        for point in points
        for own in [point.accuracy]
    ]
    return _curve(label, values, lambda value: f"{formats.accuracy(value)} %", axis, predicted)


def _exact(values: Iterable[tuple[float, float]], axis: TimeAxis) -> list[_Value]:
    """Finite values by the begin of their piece of time."""
    return [_Value(axis.middle_x(begin_s), value, value, value) for begin_s, value in values if math.isfinite(value)]


def _curve(
    label: str,
    values: Sequence[_Value],
    show: Callable[[float], str],
    axis: TimeAxis,
    predicted: Sequence[Step] = (),
) -> ServedCurve | None:
    if len(values) < FEWEST:
        return None
    foreseen = [step.value for step in predicted]
    low = min([one.low for one in values] + foreseen)
    high = max([one.high for one in values] + foreseen)
    scale = (_HEIGHT - _TOP) / ((high - low) or 1.0)

    def y(value: float) -> float:
        return _HEIGHT - scale * (value - low)

    def joined(places: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y(value):.1f}" for x, value in places)

    has_interval = any(one.low < one.high for one in values)
    around = [(one.x, one.high) for one in values] + [(one.x, one.low) for one in reversed(values)]
    return ServedCurve(
        label=label,
        points=joined((one.x, one.value) for one in values),
        lowest=show(min(one.value for one in values)),
        highest=show(max(one.value for one in values)),
        last=show(values[-1].value),
        marks=axis.marks,
        interval=joined(around) if has_interval else "",
        predicted=" ".join(
            f"M{axis.x(step.begin_s):.1f} {y(step.value):.1f}H{axis.x(step.end_s):.1f}" for step in predicted
        ),
    )
