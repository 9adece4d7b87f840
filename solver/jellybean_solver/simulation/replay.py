"""Replay of a rate trace on a plan in virtual time: figures by interval, and the targets that would break.

An interval is a stretch of the trace, or several short stretches merged, so that it has at least 100 requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.errors import SolverError
from jellybean_solver.figures import rate_text
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.streams import RequestStream, arrival_times, request_streams
from jellybean_solver.model.workflow import Arrivals
from jellybean_solver.simulation.interfaces import MakeWorkers
from jellybean_solver.simulation.replay_intervals import IntervalRecorder, Progress, ReplayInterval
from jellybean_solver.simulation.simulator import SimulationSettings, simulate
from jellybean_solver.simulation.sustained import grace_s
from jellybean_solver.simulation.target_breaches import TargetBreach, target_breaches
from jellybean_solver.simulation.trace import (
    MOST_REQUESTS,
    RateTrace,
    Stretch,
    copies,
    network_usd_per_h,
    sampled,
    stretch_loads,
)

LEAST_REQUESTS = 100  # least requests of an interval: fewer have no 99th percentile


@dataclass(frozen=True, slots=True)
class Replay:
    """Figures of a plan under a trace. `breaks`: broken targets in order of time, empty if all targets always hold."""

    seed: int
    length_s: float
    simulated_s: float
    requests: int
    intervals: tuple[ReplayInterval, ...]
    breaks: tuple[TargetBreach, ...]

    @property
    def share(self) -> float:
        """Share of the trace's time that was simulated; below 1 only if the trace was too long and was sampled."""
        return self.simulated_s / self.length_s


def replay(
    plan: Plan,
    make_workers: MakeWorkers,
    trace: RateTrace,
    *,
    slow_latency_s: float,
    seed: int = 0,
    most_requests: int = MOST_REQUESTS,
    progress: Progress = lambda done, total: None,
) -> Replay:
    """Simulate a plan, idle at first, under the trace's rates until every request is answered.

    A rate in the trace is that of one site of the source's tier. Sources of workflows that the plan leaves out are not
    replayed. `slow_latency_s`: p99 latency without overload.
    SolverError if sources of one stream differ in rate.
    """
    streams = request_streams(plan)
    sites = {source.name: plan.sites_of(source.tier) for source in plan.sources}
    trace = _in_all(_with_audits(trace, plan), sites)
    for stream in streams:
        _check_equal(trace, [source.name for source in stream.sources])
    leaders = {stream.sources[0].name: stream for stream in streams}
    trace = sampled(trace, list(leaders), stretch_loads(plan, streams, trace), most_requests)
    groups = _groups(trace.stretches, list(leaders))
    poisson = any(stream.arrivals is Arrivals.POISSON for stream in streams)
    lengths_s = [_seconds(group) for group in groups]
    graces_s = [_grace_s(group, list(leaders), slow_latency_s, poisson) for group in groups]
    recorder = IntervalRecorder(lengths_s, graces_s, copies(plan), sites, plan.deadlines_s, progress)

    def times(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        leader = stream.sources[0].name
        own = 1.0 / leaders[leader].sites  # each site sends its part
        pieces = [(end_s, rate_per_s * own) for end_s, rate_per_s in trace.pieces(leader)]
        return arrival_times(pieces, stream.arrivals, rng, phase)

    settings = SimulationSettings(trace.simulated_s, seed)
    simulate(plan, make_workers, settings, times=times, observer=recorder)
    network = network_usd_per_h(plan, streams)
    backlogs = recorder.backlogs()
    intervals = tuple(recorder.interval(i, group, network, plan, backlogs[i]) for i, group in enumerate(groups))
    requests = sum(interval.offered for interval in intervals)
    return Replay(seed, trace.length_s, trace.simulated_s, requests, intervals, target_breaches(plan, intervals))


def _with_audits(trace: RateTrace, plan: Plan) -> RateTrace:
    """The trace with the rates of the plan's audits."""
    return RateTrace(tuple(replace(one, rates_per_s=plan.with_audit_rates(one.rates_per_s)) for one in trace.stretches))


def _in_all(trace: RateTrace, sites: Mapping[str, int]) -> RateTrace:
    """The trace of these sources, with each rate multiplied by the number of sites. `sites`: source -> it."""
    return RateTrace(
        tuple(
            replace(s, rates_per_s={n: rate * sites[n] for n, rate in s.rates_per_s.items() if n in sites})
            for s in trace.stretches
        )
    )


def _check_equal(trace: RateTrace, names: Sequence[str]) -> None:
    for stretch in trace.stretches:
        rates = {name: stretch.rates_per_s[name] for name in names}
        if not all(math.isclose(rate, rates[names[0]], rel_tol=1e-9) for rate in rates.values()):
            stated = ", ".join(f"{name} {rate_text(rate)}" for name, rate in rates.items())
            raise SolverError(f"from {stretch.start_s:g} s on sources of one stream of requests differ: {stated}")


def _groups(stretches: Sequence[Stretch], leaders: Sequence[str]) -> list[list[Stretch]]:
    """Groups of consecutive stretches with `LEAST_REQUESTS` each; a stretch with enough requests is its own group."""
    groups: list[list[Stretch]] = []
    missing = 0.0  # requests that the last group still lacks
    for stretch in stretches:
        requests = _requests(stretch, leaders)
        if missing <= 0 or requests >= LEAST_REQUESTS:
            groups.append([])
            missing = LEAST_REQUESTS
        groups[-1].append(stretch)
        missing -= requests
    return groups


def _requests(stretch: Stretch, leaders: Sequence[str]) -> float:
    return stretch.simulated_s * sum(stretch.rates_per_s[name] for name in leaders)


def _seconds(group: Sequence[Stretch]) -> float:
    return sum(stretch.simulated_s for stretch in group)


def _grace_s(group: Sequence[Stretch], leaders: Sequence[str], slow_latency_s: float, poisson: bool) -> float:
    window_s, requests = _seconds(group), sum(_requests(stretch, leaders) for stretch in group)
    arrivals = Arrivals.POISSON if poisson and requests > 0 else Arrivals.PERIODIC
    return grace_s(slow_latency_s, requests / window_s, window_s, arrivals)
