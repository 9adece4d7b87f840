"""Finds what left its prediction while a plan was served: rates, times, children and inputs, in the ledger's intervals.

Each figure has two cumulative sums (CUSUM, Page 1954) of by how many standard errors it lies above or below what was
predicted and tolerated. A sum that reaches `ALARM` is told, with the last time that it was 0, since when the figure is
off, and with how rarely chance alone would reach it (Siegmund 1985, sec. II.6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 0.10  # relative: so far a figure may be from its prediction
SLACK = 0.5  # standard errors per interval that a sum forgets
ALARM = 8.0  # standard errors
_OVERSHOOT = 1.166  # of a sum at the end of an interval, in Siegmund's formula


@dataclass(frozen=True, slots=True)
class Observation:
    """A figure in one interval: its mean over `count` observations, each with a standard deviation of `spread` units.

    `low`, `high`: what is predicted, without tolerance; the same unless it depends on the load. `unit`: what distances
    from it are in; None: the prediction itself. `tolerance`: in units; None: that of the watch.
    """

    name: str
    at_s: float  # Unix time of the interval's begin
    seconds: float
    mean: float
    count: float
    low: float
    high: float
    spread: float = 1.0
    unit: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Drifted:
    """A figure that is off since `since_s`. `distance`: from its prediction; `once_in_s`: how often by chance.

    `is_relative`: the distance is a part of the prediction; else in units of the observations.
    """

    name: str
    since_s: float
    distance: float
    once_in_s: float
    is_relative: bool = True

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON values; the distance as `ratio` to the prediction, or in `standard_deviations`."""
        figure = {"ratio": 1 + self.distance} if self.is_relative else {"standard_deviations": self.distance}
        return {"name": self.name, "since_s": self.since_s, **figure, "by_chance_once_in_s": self.once_in_s}


@dataclass(slots=True)
class _Sum:
    """A cumulative sum in one direction, since it was last 0."""

    value: float = 0.0
    since_s: float = 0.0
    weight: float = 0.0
    distances: float = 0.0
    seconds: float = 0.0
    intervals: int = 0

    def add(self, excess: float, distance: float, seen: Observation) -> None:
        """Add an interval's excess in standard errors."""
        if self.value == 0.0:
            self.since_s, self.weight, self.distances, self.seconds, self.intervals = seen.at_s, 0.0, 0.0, 0.0, 0
        self.value = max(0.0, self.value + excess - SLACK)
        self.weight += seen.count
        self.distances += distance * seen.count
        self.seconds += seen.seconds
        self.intervals += 1


@dataclass(slots=True)
class _Watch:
    is_relative: bool
    above: _Sum = field(default_factory=_Sum)
    below: _Sum = field(default_factory=_Sum)


class DriftWatch:
    """Takes observations in the order of time; `drifted` has the figures that are off now.

    A figure that was off in one direction and then in the other is told once, as it was last.
    """

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self._tolerance = tolerance
        self._watches: dict[str, _Watch] = {}

    def see(self, seen: Observation) -> None:
        """Take a figure of one interval; one without observations says nothing."""
        is_relative = seen.unit is None
        if seen.count <= 0 or (is_relative and seen.low <= 0):
            return
        watch = self._watches.setdefault(seen.name, _Watch(is_relative))
        tolerance = self._tolerance if seen.tolerance is None else seen.tolerance
        error = seen.spread / math.sqrt(seen.count)
        above = (seen.mean - seen.high) / (seen.unit or seen.high)
        below = (seen.mean - seen.low) / (seen.unit or seen.low)
        watch.above.add((above - tolerance) / error, above, seen)
        watch.below.add((-below - tolerance) / error, below, seen)

    def see_all(self, observations: Iterable[Observation]) -> DriftWatch:
        """Take many."""
        for seen in observations:
            self.see(seen)
        return self

    @property
    def drifted(self) -> tuple[Drifted, ...]:
        """What is off, the surest first."""
        found = [*self._found()]
        return tuple(sorted(found, key=lambda one: -one.once_in_s))

    def _found(self) -> Iterator[Drifted]:
        for name, watch in self._watches.items():
            off = [one for one in (watch.above, watch.below) if one.value >= ALARM]
            if off:
                one = max(off, key=lambda side: side.since_s)
                once = _intervals_by_chance(one.value) * one.seconds / one.intervals
                yield Drifted(name, one.since_s, one.distances / one.weight, once, watch.is_relative)


def _intervals_by_chance(value: float) -> float:
    """Mean number of intervals until a sum reaches a value by chance, with the figure at the edge of the tolerance."""
    exponent = min(700.0, 2 * SLACK * (value + _OVERSHOOT))
    return (math.exp(exponent) - exponent - 1) / (2 * SLACK**2)
