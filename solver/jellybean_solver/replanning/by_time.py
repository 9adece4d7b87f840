"""Rates that change with time: one plan for each period, of the least cost with that of changing between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Rates = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time. `rates_per_s`: of each source, the highest of this time."""

    start_s: float
    end_s: float
    rates_per_s: Rates

    @property
    def hours(self) -> float:
        return (self.end_s - self.start_s) / 3600.0


def merged_periods(periods: Sequence[Period], most: int) -> tuple[Period, ...]:
    """At most so many periods in a row, by merging neighbours: those first whose rates differ the least.

    A merged period has the higher rate of each source. What a merge wastes is the time for which a source is planned
    above its rate, times by how much, as a share of its highest rate.
    """
    found = list(periods)
    peaks = {name: max(one.rates_per_s[name] for one in periods) for name in periods[0].rates_per_s}
    while len(found) > 1:
        wastes = [_waste(one, two, peaks) for one, two in pairwise(found)]
        at = min(range(len(wastes)), key=wastes.__getitem__)
        if len(found) <= most and wastes[at] > 0.0:
            break
        found[at : at + 2] = [_together(found[at], found[at + 1])]
    return tuple(found)


def _together(one: Period, two: Period) -> Period:
    rates = {name: max(rate, two.rates_per_s[name]) for name, rate in one.rates_per_s.items()}
    return Period(one.start_s, two.end_s, rates)


def _waste(one: Period, two: Period, peaks: Rates) -> float:
    both = _together(one, two).rates_per_s
    return sum(
        part.hours * (both[name] - part.rates_per_s[name]) / peak
        for part in (one, two)
        for name, peak in peaks.items()
        if peak > 0.0
    )


def cheapest_sequence(
    costs: Sequence[Sequence[float]], moves: Sequence[Sequence[float]], *, repeats: bool
) -> tuple[float, tuple[int, ...]]:
    """A plan for each period, so that all periods and changes together cost the least: their sum, and the plans.

    `costs`: USD by period and plan, inf if the plan does not do for the period. `moves`: USD of changing from one plan
    to another, inf if that is impossible. `repeats`: the first period follows on the last. Dynamic programming over
    periods, for each first plan if it repeats.
    """
    stays, changes = np.asarray(costs, dtype=float), np.asarray(moves, dtype=float)
    reached = stays[:1]  # least cost up to a period, by the first plan and that of the period
    if repeats:
        reached = np.where(np.eye(len(changes), dtype=bool), stays[0], np.inf)
    origins = []
    for own in stays[1:]:
        ways = reached[:, :, np.newaxis] + changes  # first plan, that before, that of the period
        origins.append(ways.argmin(axis=1))
        reached = ways.min(axis=1) + own
    ends = reached + changes.T if repeats else reached
    first, last = divmod(int(ends.argmin()), len(changes))
    chosen = [last]
    for origin in reversed(origins):
        chosen.append(int(origin[first, chosen[-1]]))
    return float(ends[first, last]), tuple(reversed(chosen))
