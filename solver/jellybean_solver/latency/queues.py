"""A station (worker or link) as a queue in closed form: distribution of the waiting time.

The arriving work (seconds of service) varies for three reasons. Each is measured as variance over mean, in seconds:

- bursts: requests arrive at random. Round robin passes each worker its share of this variation only. A burst waits
  once: a slow station releases it smoothly to the next. Stations in series with equal deterministic service times have
  exactly the wait of the slowest (Friedman, Operations Research, 1965).
- irregularity: several routes and operators bring streams that are periodic one by one but have random phases. The
  arrivals of n such streams vary as a Brownian bridge over a period, which is bounded: the wait W in jobs has P(W > x)
  = exp(-2 x^2 / n - 2 x (1 - load)) (Hajek, Operations Research, 1994; Roberts and Virtamo, IEEE Trans. Communications,
  1991). Waits grow as the root of n and stay finite at full load. An operator whose input comes from the same worker
  adds no stream. Requests delayed elsewhere arrive late: if two delays differ by d on average, the count of arrivals
  deviates by the number due in d (Mercer, J. R. Statist. Soc. B, 1960).
- chance: variable run times, and requests that pass a thinning.

A burst makes batches larger, so it is worked off at the rate of full batches. If several operators share a worker,
batches grow more slowly: the wait is computed with a load between that of full batches and that of the batches that
form without a burst (`BURST_BATCH_SHARE`). If batches of size 1 could not keep up with the rate, irregular arrivals
also make batches larger instead of waits longer.

Mean waits follow Kraemer and Langenbach-Belz for GI/G/1 (in Whitt, The Queueing Network Analyzer, Bell System Technical
Journal, 1983). If arrivals are smoother than Poisson, fewer requests wait but those wait as long: their factor applies
to the probability of waiting, and non-zero waits have Kingman's mean (Proc. Camb. Phil. Soc. 1961).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.distributions import quantile_points
from jellybean_solver.model.workflow import ServiceTime

LEAST_BRIDGE_SHARE = 0.7  # least share of the Brownian bridge's mean wait, for few streams of whole jobs; fitted
SHARED_STREAM_WEIGHT = 0.2  # streams added where round robin shares random arrivals; fitted
LATE_STREAM_WEIGHT = 1.5  # streams added per request by which arrivals deviate from the requests due; fitted
BATCH_GROWTH_SHARE = 0.6  # share of the waits by irregularity that remains if batches grow; fitted
REGULARITY_POWER = 8  # exponent of the visiting share: near a share of 1, arrivals are as regular as the source
NEGLIGIBLE_SHARE = 3e-4  # share of requests: waits rarer than this do not affect the p99
BURST_BATCH_SHARE = 0.25  # share of the time lost in partial batches that a burst at a shared worker still meets
SATURATED_LOAD = 0.9999  # at this load a queue counts as unstable


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: `load`, the probability of waiting; `wait_s`, the mean of non-zero waits in seconds."""

    load: float = 0.0
    wait_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.load * self.wait_s if self.load > 0 else 0.0

    def log_mgf(self, theta: Floats) -> Floats:
        """Log moment generating function of the wait, truncated at the quantile 1 - `NEGLIGIBLE_SHARE`."""
        return wait_log_mgf(np.array(self.load), np.array(self.wait_s), theta)


def wait_log_mgf(load: Floats, wait_s: Floats, theta: Floats) -> Floats:
    """Log moment generating function of the waits of many queues (see `Queue`); the arrays are broadcast."""
    meets = (wait_s > 0.0) & (load > NEGLIGIBLE_SHARE)
    ends = meets & np.isfinite(wait_s)
    some, mean_s = np.where(ends, load, 0.5), np.where(ends, wait_s, 0.0)
    longest = np.log(some / NEGLIGIBLE_SHARE)  # in units of the mean wait
    waits = np.log(some * longest) + _log_mean_growth(longest * (theta * mean_s - 1.0))
    waits = np.logaddexp(waits, math.log(NEGLIGIBLE_SHARE) + theta * mean_s * longest)
    with np.errstate(divide="ignore"):
        total = np.logaddexp(np.log1p(-np.minimum(some, 1.0)), waits)
    return np.where(ends, total, np.where(meets, np.inf, 0.0))


@dataclass(frozen=True, slots=True)
class WorkStream:
    """Work that routes bring to a station: `per_s` jobs per second, each with mean `seconds` and `variance` (s^2).

    `stream`: index of the request stream. `weight`: share of its requests. `chance`: probability that a request brings
    a job. `size`: jobs per run. `regular`: comes as evenly spaced as the source sent it. `follows`: comes only from
    operators at the same station. `squares`: sum of the squared route weights (None: a single route).
    """

    stream: int
    weight: float
    per_s: float
    seconds: float
    variance: float = 0.0
    chance: float = 1.0
    size: float = 1.0
    regular: bool = False
    squares: float | None = None
    follows: bool = False


@dataclass(frozen=True)
class Traffic:
    """All work that arrives at a station, which `share` of the requests visit.

    `roughness` and `rates`: per request stream, squared coefficient of variation of inter-arrival times, and rate.
    `late`: mean absolute difference between the number of periodic requests that have arrived and the number due.
    """

    pieces: Sequence[WorkStream]
    share: float
    roughness: Sequence[float]
    rates: Sequence[float]
    late: float = 0.0

    @cached_property
    def work(self) -> float:
        """Seconds of work that arrive per second."""
        return sum(piece.per_s * piece.seconds for piece in self.pieces)

    @property
    def mean_s(self) -> float:
        return self.work / sum(piece.per_s for piece in self.pieces)

    @property
    def bursts_s(self) -> float:
        brought = [0.0] * len(self.rates)
        for piece in self.pieces:
            brought[piece.stream] += piece.per_s * piece.seconds
        all_streams = zip(self.roughness, brought, self.rates, strict=True)
        return sum(rough * done**2 / rate for rough, done, rate in all_streams if rate > 0) / self.work

    @property
    def chance_s(self) -> float:
        return sum(p.per_s * (p.variance + (1.0 - p.chance) * p.seconds**2) for p in self.pieces) / self.work

    @cached_property
    def random(self) -> float:
        """Share of the work whose arrivals are random."""
        return sum(p.per_s * p.seconds * min(1.0, self.roughness[p.stream]) for p in self.pieces) / self.work

    @property
    def others(self) -> float:
        """Number of other periodic streams that a request meets here."""
        come = squared = as_sent = 0.0
        for p in self.pieces:
            part = min(1.0, self.roughness[p.stream]) if p.follows else 1.0
            come += part * p.weight
            squared += part * (p.weight**2 if p.squares is None else p.squares)
            as_sent += p.per_s * p.seconds * p.regular
        share, as_sent = min(1.0, self.share), as_sent / self.work
        more = max(0.0, come**2 / squared - 1.0) if squared > 0 else 0.0
        shared = self.random * (1.0 - share**REGULARITY_POWER)
        return (
            more * (1.0 - (share * as_sent) ** REGULARITY_POWER)
            + SHARED_STREAM_WEIGHT * shared
            + LATE_STREAM_WEIGHT * self.late
        )

    def meeting_s(self, free: float) -> float:
        """Mean wait caused by other periodic streams; `free`: share of the station's time that is free."""
        others = self.others
        if others <= 0.0:
            return 0.0
        job_s = sum(p.per_s * p.seconds**2 * p.size for p in self.pieces) / self.work
        # Two streams alone would coincide more rarely, but their phases drift.
        part = max(LEAST_BRIDGE_SHARE, others / (1.0 + others))
        return part * job_s * math.sqrt(math.pi * others / 8.0) * _exp_erfc(free * math.sqrt(others / 2.0))

    def lumps_s(self, free: float) -> float:
        """Mean wait behind follow-up work at the same station that only some of the requests bring."""
        some = ((max(0.0, 1.0 - p.weight / self.share), p) for p in self.pieces if p.follows)
        return sum(part * p.per_s * p.seconds**2 / 2.0 / (free + p.per_s * p.seconds) for part, p in some)


@dataclass(frozen=True, slots=True)
class Station:
    """The queues of a station. `bursts`: waited for once along a route; `own`: waited for at every visit."""

    bursts: Queue = Queue()
    own: Queue = Queue()


def station(traffic: Traffic, load: float, busy: float, *, behind: bool = False) -> Station:
    """The queues of a station. `load`: utilisation if all batches were full; `busy`: with the batches that form.

    `behind`: True if batches of size 1 could not keep up with the rate.
    """
    if not traffic.pieces or traffic.work <= 0 or load <= 0:
        return Station()
    if load >= SATURATED_LOAD:
        return Station(Queue(1.0, math.inf), Queue(1.0, math.inf))
    mean, bursts, chance = traffic.mean_s, traffic.bursts_s, traffic.chance_s
    met_s = traffic.meeting_s(1.0 - busy) + traffic.lumps_s(1.0 - busy) / busy
    if behind:
        met_s *= BATCH_GROWTH_SHARE + (1.0 - BATCH_GROWTH_SHARE) * traffic.random
    irregular = 2.0 * (1.0 - busy) * met_s

    def waited(per_work_s: float, used: float) -> Queue:
        spacing = min(1.0, (bursts + irregular) / mean)
        variation = max((bursts + irregular + chance) / mean, 1e-9)
        calm = 2.0 * (1.0 - used) * (1.0 - spacing) ** 2 / (3.0 * used * variation)
        return Queue(used * math.exp(-calm), per_work_s / 2.0 / (1.0 - used))

    regular, random = Queue(busy, met_s), waited(chance, load)
    # Irregular arrivals are close together: short waits, not rare ones.
    longest_s = regular.mean_s / busy + random.wait_s
    own = Queue((regular.mean_s + random.mean_s) / longest_s, longest_s) if longest_s > 0 else Queue()
    full = load + (BURST_BATCH_SHARE * max(0.0, busy - load) if len(traffic.pieces) > 1 else 0.0)
    return Station(waited(bursts, full), own)


def service_variance(service: ServiceTime) -> float:
    """Variance of a run's time in seconds squared, with quantiles interpolated linearly."""
    points = quantile_points(service)
    squares = sum(
        (right - left) * (low**2 + low * high + high**2) / 3.0 for (left, low), (right, high) in pairwise(points)
    )
    return max(0.0, squares - service.mean_s**2) if points else 0.0


def service_log_mgf(service: ServiceTime, theta: Floats) -> Floats:
    """log E exp(theta S) of a run's time S, with quantiles interpolated linearly; constant if it has only a mean."""
    points = quantile_points(service)
    if len(points) < 2:
        return theta * service.mean_s
    levels, values = np.array(points).T
    parts = [
        np.log(width) + theta * high + _log_mean_exp(theta * (high - low))
        for width, low, high in zip(np.diff(levels), values[:-1], values[1:], strict=True)
        if width > 0
    ]
    total: Floats = np.logaddexp.reduce(parts)
    return total


def residual_log_mgf(service: ServiceTime, theta: Floats, handed: float = 0.0, spread_s: float = 0.0) -> Floats:
    """Log MGF of the residual at a random time of a run of time S, mean m, MGF M: log((M(theta) - 1) / (theta m)).

    `spread_s`: a uniform variation of up to this many seconds either way is added to S. `handed`: the next run is
    longer by this share of S, less its mean: log of E S exp(theta (U + handed) S) / m with U uniform in [0, 1].
    """
    log, handed_on = _run_log_mgf(service, theta * (1.0 + handed), spread_s), np.zeros_like(theta)
    if handed > 0:
        more, variance = _run_log_mgf(service, theta * handed, spread_s), service_variance(service) + spread_s**2 / 3.0
        log, handed_on = log - more, more - theta * handed * (service.mean_s + variance / service.mean_s)
    grown = np.where(log < 30.0, np.log(np.expm1(np.minimum(log, 30.0))), log)
    return np.asarray(grown - np.log(theta * service.mean_s) + handed_on)


def _run_log_mgf(service: ServiceTime, theta: Floats, spread_s: float) -> Floats:
    log = service_log_mgf(service, theta)
    return log + _log_mean_growth(2.0 * spread_s * theta) - spread_s * theta if spread_s > 0 else log


def _exp_erfc(power: float) -> float:
    """exp(x^2) erfc(x) for x >= 0, by asymptotic expansion where the factors leave the floating-point range."""
    if power < 5.0:
        return math.exp(power**2) * math.erfc(power)
    return (1.0 - 0.5 / power**2) / (power * math.sqrt(math.pi))


def _log_mean_growth(power: Floats) -> Floats:
    """log of the mean of exp(x) for x uniform in [0, power]; power of either sign."""
    return np.maximum(power, 0.0) + _log_mean_exp(np.abs(power))


def _log_mean_exp(span: Floats) -> Floats:
    """log of the mean of exp(-x) for x uniform in [0, span]."""
    safe = np.maximum(span, 1e-9)
    return np.where(span > 1e-9, np.log(-np.expm1(-safe) / safe), 0.0)
