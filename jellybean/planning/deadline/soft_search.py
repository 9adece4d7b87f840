"""The plan of least cost and penalty, where each second of p99 latency above a soft target counts.

Branch and bound over the p99 latency: it is divided into ranges by the cheapest plans found for hard targets. Bounds on
cost often leave queues out and then stay far below what plans in time cost, so ranges are chosen by the estimate that
no plan for a target costs less than the one found for it. The certificate is of the bounds alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

from jellybean.quantities import DURATION, format_quantity, parse_quantity

TOLERANCE = 0.005  # relative: ranges of p99 that save no more are left; less asks for more plans in time
MOST_TARGETS = 10  # each asks for a plan in time, which takes seconds; after these the certificate states the gap
DIGITS = 4  # of targets that are tried

PlannedT = TypeVar("PlannedT")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[PlannedT]):
    """A plan, its cost, its p99 latency, and a lower bound on the cost of all plans for the target it was made for."""

    cost_usd_per_h: float
    bound_usd_per_h: float
    p99_s: float
    planned: PlannedT


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan for a target. `nearest_s`: the least p99 latency that one was found for; `out_of_time`: time ended."""

    nearest_s: float | None = None
    out_of_time: bool = False


PlanInTime = Callable[[float], "Candidate[PlannedT] | NoPlan"]  # the cheapest plan for a hard p99 target in seconds


@dataclass(frozen=True, slots=True)
class SoftTarget:
    """A p99 latency, and what each second above it counts."""

    p99_s: float
    usd_per_h_per_s: float

    def penalty(self, p99_s: float) -> float:
        """USD per hour for a p99 latency."""
        return self.usd_per_h_per_s * max(0.0, p99_s - self.p99_s)


@dataclass(frozen=True, slots=True)
class _Range:
    """Plans whose p99 latency is above `low_s` and at most `high_s`. `open`: a target inside it may be tried.

    `cost_bound`: proven, `estimate`: the cost of the plan found for the least target that was tried above the range.
    """

    low_s: float
    high_s: float
    cost_bound: float
    estimate: float
    open: bool = True


@dataclass(frozen=True, slots=True)
class SoftOutcome(Generic[PlannedT]):
    """The best candidate, with a lower bound on cost and penalty of every plan, and the targets that were tried."""

    best: Candidate[PlannedT]
    bound_usd_per_h: float
    tried_s: tuple[float, ...]
    refused_s: float | None  # highest target that no plan was found for
    out_of_time: bool


class SoftSearch(Generic[PlannedT]):
    """The search from the cheapest plan of all on. `least_s`: proven to be below every plan's p99 latency.

    A plan that is faster refutes `least_s`: then nothing is known of plans below it.
    """

    def __init__(
        self,
        target: SoftTarget,
        cheapest: Candidate[PlannedT],
        plan_in_time: PlanInTime[PlannedT],
        least_s: float = 0.0,
        tolerance: float = TOLERANCE,
        most: int = MOST_TARGETS,
    ) -> None:
        self._target, self._plan, self._tolerance, self._most = target, plan_in_time, tolerance, most
        self.best = cheapest
        self._tried: list[float] = []
        self._refused_s: float | None = None
        self._floor_s = 0.0  # below it no plan was found
        self._out_of_time = False
        self._known = [cheapest]
        least_s = 0.0 if cheapest.p99_s < least_s else least_s
        borders = sorted({least_s, *self._inside(least_s, cheapest.p99_s), cheapest.p99_s})
        known = cheapest.bound_usd_per_h, cheapest.cost_usd_per_h
        self._ranges = [_Range(low, high, *known) for low, high in pairwise(borders)]
        self._ranges.append(_Range(cheapest.p99_s, math.inf, *known, open=False))

    def _inside(self, low_s: float, high_s: float) -> tuple[float, ...]:
        return (self._target.p99_s,) if low_s < self._target.p99_s < high_s else ()

    def value(self, candidate: Candidate[PlannedT]) -> float:
        """Cost and penalty of a candidate in USD per hour."""
        return candidate.cost_usd_per_h + self._target.penalty(candidate.p99_s)

    def run(self) -> SoftOutcome[PlannedT]:
        """Divide the most promising range until none can save more than the tolerance, or targets or time end."""
        while len(self._tried) < self._most and not self._out_of_time:
            chosen = self._most_promising()
            if chosen is None:
                break
            self._divide(chosen)
        bound = min(self.value(self.best), *(self._bound(one) for one in self._ranges))
        return SoftOutcome(self.best, bound, tuple(self._tried), self._refused_s, self._out_of_time)

    def _bound(self, one: _Range) -> float:
        return one.cost_bound + self._target.penalty(one.low_s)

    def _most_promising(self) -> _Range | None:
        """The open range of the least estimate of cost and penalty; None if that saves too little."""
        worth_trying = self.value(self.best) * (1.0 - self._tolerance)

        def estimate(one: _Range) -> float:
            return one.estimate + self._target.penalty(one.low_s)

        ranges = [one for one in self._ranges if one.open and estimate(one) < worth_trying]
        return min(ranges, key=lambda one: (estimate(one), one.low_s), default=None)

    def _divide(self, chosen: _Range) -> None:
        """Try a target inside the range, and replace it by what is known below and above the target."""
        target_s = self._target_inside(chosen)
        if target_s is None:
            self._ranges = [replace(one, open=False) if one is chosen else one for one in self._ranges]
            return
        self._tried.append(target_s)
        tried = self._plan(target_s)
        if isinstance(tried, NoPlan) and tried.out_of_time:
            self._out_of_time = True
            return
        self._split_at(target_s)
        if isinstance(tried, NoPlan):
            self._refuse(target_s, tried.nearest_s)
        else:
            self._accept(target_s, tried)

    def _target_inside(self, chosen: _Range) -> float | None:
        """The soft target itself for what meets it; else the least p99 that is known to be met, or the middle."""
        if chosen.high_s <= self._target.p99_s:
            return chosen.high_s
        if chosen.low_s < self._floor_s < chosen.high_s:
            return self._floor_s
        middle_s = parse_quantity(DURATION, format_quantity(DURATION, 0.5 * (chosen.low_s + chosen.high_s), DIGITS))
        return middle_s if chosen.low_s < middle_s < chosen.high_s else None

    def _split_at(self, border_s: float) -> None:
        parts: list[_Range] = []
        for one in self._ranges:
            inside = one.low_s < border_s < one.high_s
            parts += [replace(one, high_s=border_s), replace(one, low_s=border_s)] if inside else [one]
        self._ranges = parts

    def _refuse(self, target_s: float, nearest_s: float | None) -> None:
        """Close the ranges in which no plan was found. Their bounds stay: that there is none is not proven."""
        self._refused_s = max(target_s, self._refused_s or 0.0)
        self._floor_s = max(self._floor_s, target_s, nearest_s or 0.0)
        self._ranges = [replace(one, open=one.open and one.high_s > self._floor_s) for one in self._ranges]

    def _accept(self, target_s: float, candidate: Candidate[PlannedT]) -> None:
        """Raise bounds and estimates below the target, and close what the plan found for it answers."""
        p99_s = min(candidate.p99_s, target_s)
        lowest = self._ranges[0]
        if p99_s < lowest.low_s:
            self._ranges[0] = replace(lowest, low_s=0.0)
        self._split_at(p99_s)
        self._known.append(candidate)
        cost = min(one.cost_usd_per_h for one in self._known if one.p99_s <= target_s or one is candidate)
        done_s = max(self._target.p99_s, self._floor_s)
        self._ranges = [
            replace(
                one,
                cost_bound=max(candidate.bound_usd_per_h, one.cost_bound),
                estimate=max(cost, one.estimate),
                open=one.open and done_s < one.high_s <= p99_s,
            )
            if one.high_s <= target_s
            else one
            for one in self._ranges
        ]
        self.best = min(self.best, candidate, key=self.value)
