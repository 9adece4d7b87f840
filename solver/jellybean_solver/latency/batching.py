"""Batch sizes that form at a worker without waiting for further requests, in closed form.

A run takes the requests that arrived during the previous one, up to the batch size. The mean size is therefore a fixed
point: as many requests arrive in a cycle (a run of that size, and the worker's other operators meanwhile) as the next
run takes. Compare Inoue, Queueing analysis of GPU-based inference servers with dynamic batching (Performance
Evaluation, 2021); here for several operators on a worker and for requests that arrive in groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jellybean_solver.latency.queues import residual_log_mgf
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.workflow import ServiceTime, Times

LEAST_FREE_SHARE = 0.05  # share of a worker's time that each operator gets at least
LEAST_DAMPING = 0.75  # least share of a batch's size variation that the next batch does not inherit; fitted
SIZE_TOLERANCE = 1e-4  # requests: a smaller change of size ends the iteration
_ROUNDS = 20  # most iterations of the fixed point


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Arrivals of one operator at a worker: requests per second, in groups of `group` that arrive together.

    `roughness`: squared coefficient of variation of inter-arrival times; `variation`: that of a run's time. `jobs`: how
    many of a group are children of one request.
    """

    times: Times
    batch: int
    per_s: float
    group: float
    roughness: float
    jobs: float = 1.0
    variation: float = 0.0


@dataclass(frozen=True, slots=True)
class NextRunWait:
    """Distribution of the wait for an operator's next run.

    With probability `chance` the wait is the residual of a cycle of `span_s` seconds. At low load few requests arrive
    during a run, but the slowest in a hundred waits for nearly all of it, so the probability is reduced, not the wait.
    With probability `first` the wait is a run of `first_s` seconds, which the first request of the same group started
    alone. Else it is 0.

    The cycle varies by up to `spread_s` seconds either way. Each additional second of the cycle makes the request's own
    run `handed` seconds longer, because more requests join it.
    """

    chance: float = 0.0
    span_s: float = 0.0
    first: float = 0.0
    first_s: float = 0.0
    handed: float = 0.0
    spread_s: float = 0.0

    @property
    def mean_s(self) -> float:
        if self.chance * self.span_s <= 0:
            return self.first * self.first_s
        squared = self.span_s**2 + self.spread_s**2 / 3.0
        return self.chance * squared / self.span_s / 2.0 + self.first * self.first_s

    def log_mgf(self, theta: Floats, service: ServiceTime) -> Floats:
        """Log moment generating function. `service`: distribution of a cycle's time, scaled to the mean `span_s`."""
        none = max(0.0, 1.0 - self.chance - self.first)
        parts = [np.full_like(theta, math.log(none) if none > 0 else -math.inf)]
        if self.chance * self.span_s > 0:
            scale = self.span_s / service.mean_s
            rest = residual_log_mgf(service, theta * scale, self.handed, self.spread_s / scale)
            parts.append(math.log(self.chance) + rest)
        if self.first > 0:
            parts.append(math.log(self.first) + theta * self.first_s)
        return np.asarray(np.logaddexp.reduce(parts))


NO_WAIT = NextRunWait()


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batch sizes of an operator at a worker, in requests: `mean` over runs, and `seen`, the mean over requests.

    `turn`: wait for the operator's next run if batches hold several requests; with regular arrivals only if batches of
    size 1 could not keep up with the rate.
    """

    mean: float = 1.0
    seen: float = 1.0
    turn: NextRunWait = NO_WAIT

    @property
    def turn_s(self) -> float:
        """Mean seconds until the next run."""
        return self.turn.mean_s


def batch_sizes(fed: Sequence[BatchInput]) -> list[BatchSizes]:
    """Batch sizes of all operators of one worker, in the order of `fed`."""
    sizes = [min(float(one.batch), one.group) for one in fed]
    if all(one.batch == 1 for one in fed):
        return [BatchSizes(size) for size in sizes]
    behind = sum(utilisation_in_batches(one.times, one.per_s, 1.0) for one in fed) > 1.0
    cycles_s = [0.0] * len(fed)
    for _ in range(_ROUNDS):
        before, cycles_s = sizes, _cycles_s(fed, sizes)
        sizes = [
            min(float(one.batch), (size + _cycle_arrivals(one, cycle_s).size) / 2.0)
            for one, size, cycle_s in zip(fed, before, cycles_s, strict=True)
        ]
        if all(abs(now - last) < SIZE_TOLERANCE for now, last in zip(sizes, before, strict=True)):
            break
    return [_runs(one, size, cycle_s, behind) for one, size, cycle_s in zip(fed, sizes, cycles_s, strict=True)]


def _cycles_s(fed: Sequence[BatchInput], sizes: Sequence[float]) -> list[float]:
    """Seconds from one run of an operator to its next, if runs have these sizes: at most until every operator has run.

    An operator with few arrivals does not run in every cycle.
    """
    own_s = [mean_s(one.times, size) for one, size in zip(fed, sizes, strict=True)]
    used = [one.per_s * own / size for one, own, size in zip(fed, own_s, sizes, strict=True)]
    free = max(LEAST_FREE_SHARE, 1.0 - sum(share for one, share in zip(fed, used, strict=True) if one.batch == 1))
    all_s = sum(own for one, own in zip(fed, own_s, strict=True) if one.batch > 1) / free
    often = [min(1.0, one.per_s / one.group * all_s) if one.batch > 1 else 0.0 for one in fed]
    often_s, all_used = sum(own * part for own, part in zip(own_s, often, strict=True)), sum(used)
    return [
        min(own / max(1.0 - all_used + share, LEAST_FREE_SHARE), max(own, (often_s + own * (1.0 - part)) / free))
        for own, share, part in zip(own_s, used, often, strict=True)
    ]


def utilisation_in_batches(times: Times, per_s: float, size: float) -> float:
    """Share of a worker's time taken by `per_s` requests per second in runs of `size`."""
    return per_s * mean_s(times, size) / size


class _CycleArrivals(NamedTuple):
    """Arrivals in a cycle: mean number of groups, probability of none, probability of a run of one, mean run size."""

    groups: float
    none: float
    alone: float
    size: float


def _cycle_arrivals(fed: BatchInput, cycle_s: float) -> _CycleArrivals:
    groups = fed.per_s / fed.group * cycle_s
    none = max(0.0, 1.0 - groups)  # for arrivals as regular as possible
    none += fed.roughness * (math.exp(-groups) - none)
    alone = none * (min(2.0, fed.group) - 1.0)  # the first of a group starts alone at an idle worker
    return _CycleArrivals(groups, none, alone, fed.group * (groups + none) / (1.0 + alone))


def _runs(fed: BatchInput, mean: float, cycle_s: float, behind: bool) -> BatchSizes:
    """Batch sizes for a given mean and cycle. `behind`: True if batches of size 1 could not keep up with the rate."""
    come = _cycle_arrivals(fed, cycle_s)
    groups, none = come.groups, come.none
    # A longer run makes the next batch larger, so the variances form a geometric series.
    kept = max(LEAST_DAMPING, 1.0 - _slope(fed) ** 2)
    squares = (fed.variation * groups**2 + fed.roughness * groups) / kept
    seen = fed.group * (groups**2 + squares + none / (1.0 + come.alone)) / (groups + none)
    most = float(fed.batch)
    turn = _turn(fed, come, cycle_s, kept, behind) if most > 1 else NO_WAIT
    return BatchSizes(mean, min(most, max(come.size, seen)), turn)


def _turn(fed: BatchInput, come: _CycleArrivals, cycle_s: float, kept: float, behind: bool) -> NextRunWait:
    groups, none = come.groups, come.none
    # Small batches fall behind until a larger one catches up.
    drift = 1.0 + fed.group / come.size / 2.0 if behind else 0.0
    chance = fed.roughness * groups / (groups + none) + (1.0 - fed.roughness) * min(1.0, drift)
    first = none * (1.0 - fed.jobs / fed.group)
    span_s = cycle_s * (fed.roughness + (1.0 - fed.roughness) * max(1.0, drift))
    slope = max(0.0, _slope(fed))
    # Variance of a Poisson count conditioned on at least one.
    by_chance = max(0.0, groups**2 + groups + none - (groups + none) ** 2)
    deviation = fed.group * math.sqrt(fed.roughness * by_chance / kept)
    spread_s = min(math.sqrt(3.0) * deviation * slope / fed.per_s, span_s) if fed.per_s > 0 else 0.0
    return NextRunWait(min(chance, 1.0 - first), span_s, first, fed.times[1].mean_s, slope, spread_s)


def _slope(fed: BatchInput) -> float:
    """Further arrivals during a run per additional request in it."""
    if fed.batch == 1:
        return 0.0
    return fed.per_s * (fed.times[fed.batch].mean_s - fed.times[1].mean_s) / (fed.batch - 1)


def mean_s(times: Times, size: float) -> float:
    """Mean seconds of a run of a size, interpolated linearly between profiled sizes."""
    if size in times:
        return times[int(size)].mean_s
    above, below = max(times), 0
    for known in times:
        if known < size:
            below = max(below, known)
        if size - 1e-9 <= known < above:
            above = known
    below = below or above
    part = (size - below) / (above - below) if above > below else 0.0
    return (1.0 - part) * times[below].mean_s + part * times[above].mean_s


def service_of(times: Times, size: float) -> ServiceTime:
    """Service time of a run of a size: interpolated mean, quantiles of the next larger profiled size."""
    if size in times:
        return times[int(size)]
    above = min(known for known in times if known >= size - 1e-9)
    return replace(times[above], mean_s=mean_s(times, size))
