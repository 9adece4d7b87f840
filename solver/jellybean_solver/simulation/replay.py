"""A rate trace over a plan in virtual time: figures by interval, and the first time at which a target would break.

An interval is a stretch of the trace, or several short ones together, so that its figures stand on 100 requests.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from jellybean_solver.errors import SolverError
from jellybean_solver.model.evaluate import LIMIT_TOLERANCE
from jellybean_solver.model.flows import flows
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Arrivals
from jellybean_solver.model.streams import RequestStream, request_streams
from jellybean_solver.simulation.result import nearest_rank
from jellybean_solver.simulation.simulator import MakeWorkers, simulate
from jellybean_solver.simulation.sustained import ANSWERED, grace_s, is_sustained
from jellybean_solver.simulation.trace import MOST_REQUESTS, RateTrace, Stretch, sampled, traced_arrivals

LEAST_REQUESTS = 100  # of an interval, where the trace has them: fewer have no 99th percentile
ALLOWED_LATE = 0.01  # share of an interval's requests; one may always be late
_PROGRESS_EVERY = 2_000  # requests

Progress = Callable[[float, float], None]  # virtual seconds done, in all


@dataclass(frozen=True, slots=True)
class WorkflowInterval:
    """Of the requests of one of several workflows, as `ReplayInterval` has them of all."""

    offered: int
    late: int
    missed: int
    latency_p99_s: float


@dataclass(frozen=True, slots=True)
class ReplayInterval:
    """Figures of [start_s, end_s) of the trace, of which `simulated_s` was replayed.

    Latencies are of the requests that arrived in it (nan when none did), `answered` counts answers that came in it,
    `backlog` the requests open at its end. `busiest` is a worker or link, `utilisation` its busy share. Rate and cost
    are the interval's highest: what a bill per hour would be if it went on so.
    """

    start_s: float
    end_s: float
    simulated_s: float
    rates_per_s: Mapping[str, float]
    offered: int
    answered: int
    late: int  # of those offered: slower than the SLO on latency
    missed: int  # of those offered: not answered by its end and what requests take that met no overload
    latency_p50_s: float
    latency_p99_s: float
    busiest: str
    utilisation: float
    backlog: int
    network_usd_per_h: float
    cost_usd_per_h: float
    workflows: Mapping[str, WorkflowInterval] = field(default_factory=dict)  # where there are several

    def of(self, workflow: str) -> ReplayInterval:
        """With the requests of one of several workflows only; the interval itself under no name."""
        if not workflow:
            return self
        own = self.workflows[workflow]
        p99_s = own.latency_p99_s
        return replace(self, offered=own.offered, late=own.late, missed=own.missed, latency_p99_s=p99_s)


@dataclass(frozen=True, slots=True)
class TargetBreach:
    """A target that would break, first in [start_s, end_s). `value` is the interval's figure, `limit` the target.

    `target`: `rate` (share answered in time), `latency_p99` (seconds) or `budget` (USD per hour). `intervals` counts
    those in which it breaks; `spans_s` are when, those that follow each other as one.
    """

    target: str
    start_s: float
    end_s: float
    value: float
    limit: float
    intervals: int
    text: str
    spans_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """What a trace does to a plan. `breaks` are in order of time and empty when every target holds throughout."""

    seed: int
    length_s: float
    simulated_s: float
    requests: int
    intervals: tuple[ReplayInterval, ...]
    breaks: tuple[TargetBreach, ...]

    @property
    def share(self) -> float:
        """Simulated part of the trace's time; 1 unless it was too long."""
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
    """Offer the trace's rates, each of one site of its source's tier, to an idle plan and answer every request.

    `slow_latency_s`: what 99 of 100 requests take that meet nobody. SolverError when sources of one stream differ.
    """
    streams = request_streams(plan)
    sites = {source.name: plan.sites.get(source.tier, 1) for source in plan.sources}
    trace = _in_all(trace, sites)
    for stream in streams:
        _check_equal(trace, [source.name for source in stream.sources])
    leaders = {stream.sources[0].name: stream for stream in streams}
    trace = sampled(trace, list(leaders), _loads(plan, streams, trace), most_requests)
    groups = _groups(trace.stretches, list(leaders))
    poisson = any(stream.arrivals is Arrivals.POISSON for stream in streams)
    late_s = {w.name: w.slo.latency_p99_s for w in plan.workflows} or {"": plan.slo.latency_p99_s}
    recorder = _Recorder([_seconds(group) for group in groups], _alike(plan), sites, late_s, progress)
    recorder.grace_s = [_grace_s(group, list(leaders), slow_latency_s, poisson) for group in groups]

    def times(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        leader = stream.sources[0].name
        own = 1.0 / leaders[leader].sites  # each site offers its part
        pieces = [(end_s, rate_per_s * own) for end_s, rate_per_s in trace.pieces(leader)]
        return traced_arrivals(pieces, stream.arrivals, rng, phase)

    simulate(plan, make_workers, duration_s=trace.simulated_s, seed=seed, times=times, observer=recorder)
    network = _network_usd_per_h(plan, streams)
    backlogs = recorder.backlogs()
    intervals = tuple(recorder.interval(i, group, network, plan, backlogs[i]) for i, group in enumerate(groups))
    requests = sum(interval.offered for interval in intervals)
    return Replay(seed, trace.length_s, trace.simulated_s, requests, intervals, _breaks(plan, intervals))


class _Recorder:
    """Sums by interval of what the simulator tells."""

    def __init__(
        self,
        lengths_s: Sequence[float],
        alike: Mapping[str, int],
        sites: Mapping[str, int],
        late_s: Mapping[str, float | None],
        progress: Progress,
    ) -> None:
        """`alike`: worker or link of the plan -> how many there are; `sites`: of each source's tier.

        `late_s`: the SLO of each workflow's p99 latency; of one alone under no name.
        """
        self.ends = list(accumulate(lengths_s))
        self._alike, self._sites = alike, sites
        self.grace_s: list[float] = []
        self._late_s = late_s
        self._lengths_s = lengths_s
        self._progress = progress
        count = len(lengths_s)
        self._answered = [0] * (count + 1)  # the last: after the trace
        self._offered = {name: [0] * count for name in late_s}
        self._in_time = {name: [0] * count for name in late_s}
        self._latencies = {name: [array("d") for _ in range(count)] for name in late_s}
        self._busy: list[dict[str, float]] = [{} for _ in range(count)]
        self._arrivals = 0

    def arrived(self, now: float, workflow: str) -> None:
        self._offered[workflow][self._at(now)] += 1
        self._arrivals += 1
        if self._arrivals % _PROGRESS_EVERY == 0:
            self._progress(now, self.ends[-1])

    def answered(self, arrived_s: float, now: float, workflow: str) -> None:
        index = self._at(arrived_s)
        self._answered[bisect_right(self.ends, now)] += 1
        self._in_time[workflow][index] += now <= self.ends[index] + self.grace_s[index]
        self._latencies[workflow][index].append(now - arrived_s)

    def busy(self, place: str, begin_s: float, end_s: float) -> None:
        index = bisect_right(self.ends, begin_s)
        while index < len(self.ends) and begin_s < end_s:
            until = min(end_s, self.ends[index])
            self._busy[index][place] = self._busy[index].get(place, 0.0) + until - begin_s
            begin_s, index = until, index + 1

    def backlogs(self) -> list[int]:
        """Requests open at each interval's end."""
        offered = map(sum, zip(*self._offered.values(), strict=True))
        return list(accumulate(came - went for came, went in zip(offered, self._answered, strict=False)))

    def _of(self, workflow: str, index: int) -> WorkflowInterval:
        latencies = sorted(self._latencies[workflow][index])
        limit_s = self._late_s[workflow] or math.inf
        offered = self._offered[workflow][index]
        late, missed = len(latencies) - bisect_right(latencies, limit_s), offered - self._in_time[workflow][index]
        return WorkflowInterval(offered, late, missed, nearest_rank(latencies, 0.99))

    def interval(
        self, index: int, group: Sequence[Stretch], network: Mapping[str, float], plan: Plan, backlog: int
    ) -> ReplayInterval:
        """Closes an interval. `network`: leader of a stream -> USD per hour at one request per second."""
        latencies = sorted(chain.from_iterable(own[index] for own in self._latencies.values()))
        workflows = {name: self._of(name, index) for name in self._late_s}
        length_s = self._lengths_s[index]
        busy = {place: busy_s / self._alike[place] for place, busy_s in self._busy[index].items()}
        busiest = max(busy, key=busy.__getitem__, default=plan.workers[0].name)
        paid = max(sum(usd * stretch.rates_per_s[name] for name, usd in network.items()) for stretch in group)
        return ReplayInterval(
            start_s=group[0].start_s,
            end_s=group[-1].end_s,
            simulated_s=length_s,
            rates_per_s={n: max(s.rates_per_s[n] for s in group) / self._sites[n] for n in group[0].rates_per_s},
            offered=sum(own.offered for own in workflows.values()),
            answered=self._answered[index],
            late=sum(own.late for own in workflows.values()),
            missed=sum(own.missed for own in workflows.values()),
            latency_p50_s=nearest_rank(latencies, 0.50),
            latency_p99_s=nearest_rank(latencies, 0.99),
            busiest=busiest,
            utilisation=busy.get(busiest, 0.0) / length_s,
            backlog=backlog,
            network_usd_per_h=paid,
            cost_usd_per_h=plan.cost.compute_usd_per_h + paid,
            workflows={name: own for name, own in workflows.items() if name},
        )

    def _at(self, now: float) -> int:
        """A request never arrives after the trace, but rounding may put one on its end."""
        return min(bisect_right(self.ends, now), len(self.ends) - 1)


def _in_all(trace: RateTrace, sites: Mapping[str, int]) -> RateTrace:
    """The trace with rates of all sites together."""
    if max(sites.values()) == 1:
        return trace
    return RateTrace(
        tuple(
            replace(s, rates_per_s={n: rate * sites[n] for n, rate in s.rates_per_s.items()}) for s in trace.stretches
        )
    )


def _alike(plan: Plan) -> dict[str, int]:
    """How many there are of each worker and link of the plan."""
    found = {worker.name: plan.sites.get(worker.tier, 1) for worker in plan.workers}
    for link in plan.links:
        found[f"{link.upstream_tier}->{link.downstream_tier}"] = plan.sites.get(link.upstream_tier, 1)
    return found


def _breaks(plan: Plan, intervals: Sequence[ReplayInterval]) -> tuple[TargetBreach, ...]:
    found: list[TargetBreach | None] = []
    targets = {workflow.name: workflow.slo for workflow in plan.workflows} or {"": plan.slo}
    for name, slo in targets.items():
        own = [interval.of(name) for interval in intervals]
        breaks = (
            _first("rate", [i for i in own if _missed(i)], _answered_share, ANSWERED),
            _first("latency_p99", [i for i in own if _late(i)], lambda i: i.latency_p99_s, slo.latency_p99_s),
        )
        found += [replace(item, text=f"{name}: {item.text}" if name else item.text) for item in breaks if item]
    costs = _over_budget(plan, intervals)
    found.append(_first("budget", costs, lambda i: i.cost_usd_per_h, plan.slo.budget_usd_per_h))
    return tuple(sorted((item for item in found if item is not None), key=lambda item: item.start_s))


def _first(
    target: str, breaking: Sequence[ReplayInterval], value: Callable[[ReplayInterval], float], limit: float | None
) -> TargetBreach | None:
    if not breaking or limit is None:
        return None
    first = breaking[0]
    text = _TEXT[target](first, limit)
    return TargetBreach(
        target, first.start_s, first.end_s, value(first), limit, len(breaking), text, _spans_s(breaking)
    )


def _spans_s(intervals: Sequence[ReplayInterval]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for interval in intervals:
        begins_s = found.pop()[0] if found and found[-1][1] == interval.start_s else interval.start_s
        found.append((begins_s, interval.end_s))
    return tuple(found)


_TEXT: Mapping[str, Callable[[ReplayInterval, float], str]] = {
    "rate": lambda i, limit: (
        f"{i.missed:,} of {i.offered:,} requests are not answered in time, {i.backlog:,} wait at its end; "
        f"{i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
    "latency_p99": lambda i, limit: (
        f"p99 latency is {_duration(i.latency_p99_s)}, above the SLO of {_duration(limit)} "
        f"({i.late:,} of {i.offered:,} requests are late); {i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
    "budget": lambda i, limit: (
        f"cost is {i.cost_usd_per_h:.4f} USD/h, above the budget of {limit:.4f} USD/h "
        f"(traffic alone {i.network_usd_per_h:.4f} USD/h)"
    ),
}


def _duration(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"


def _answered_share(interval: ReplayInterval) -> float:
    return 1.0 - interval.missed / interval.offered


def _missed(interval: ReplayInterval) -> bool:
    """By the one definition of a sustained rate; a single request proves nothing."""
    return interval.missed > 1 and not is_sustained(interval.offered, interval.offered - interval.missed, failed=0)


def _late(interval: ReplayInterval) -> bool:
    return interval.late > max(1.0, ALLOWED_LATE * interval.offered)


def _over_budget(plan: Plan, intervals: Sequence[ReplayInterval]) -> list[ReplayInterval]:
    budget = plan.slo.budget_usd_per_h
    return [i for i in intervals if budget is not None and i.cost_usd_per_h > budget * (1 + LIMIT_TOLERANCE)]


def _check_equal(trace: RateTrace, names: Sequence[str]) -> None:
    for stretch in trace.stretches:
        rates = {name: stretch.rates_per_s[name] for name in names}
        if not all(math.isclose(rate, rates[names[0]], rel_tol=1e-9) for rate in rates.values()):
            told = ", ".join(f"{name} {rate:g}/s" for name, rate in rates.items())
            raise SolverError(f"from {stretch.start_s:g} s on sources of one stream of requests differ: {told}")


def _groups(stretches: Sequence[Stretch], leaders: Sequence[str]) -> list[list[Stretch]]:
    """Stretches with enough requests alone, short ones together until they have enough."""
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


def _loads(plan: Plan, streams: Sequence[RequestStream], trace: RateTrace) -> list[Mapping[str, float]]:
    """Mean busy share of every worker and link in each stretch of the trace."""
    at_one = {stream.sources[0].name: _loads_at_one(plan, stream) for stream in streams}
    found: list[Mapping[str, float]] = []
    for stretch in trace.stretches:
        loads: dict[str, float] = {}
        for name, share in at_one.items():
            for place, load in share.items():
                loads[place] = loads.get(place, 0.0) + load * stretch.rates_per_s[name]
        found.append(loads)
    return found


def _loads_at_one(plan: Plan, stream: RequestStream) -> Mapping[str, float]:
    """Busy share of workers and links by one request per second of a stream."""
    loads: dict[str, float] = {}
    alike = _alike(plan)
    for route in plan.routes:
        for name in stream.operators:
            operator, worker = plan.operator_by_name[name], plan.worker_by_name[route.workers[name]]
            busy = route.weight * operator.rate_per_s * operator.mean_request_s(worker.pool)
            loads[worker.name] = loads.get(worker.name, 0.0) + busy / stream.rate_per_s / alike[worker.name]
    bandwidth = {(link.upstream_tier, link.downstream_tier): link.bandwidth_bytes_per_s for link in plan.links}
    for flow in flows(plan):
        limit = bandwidth.get((flow.upstream_tier, flow.downstream_tier))
        if flow.crosses and flow.downstream in stream.operators and limit:
            place = f"{flow.upstream_tier}->{flow.downstream_tier}"
            loads[place] = loads.get(place, 0.0) + flow.bytes_per_s / limit / stream.rate_per_s / alike[place]
    return loads


def _network_usd_per_h(plan: Plan, streams: Sequence[RequestStream]) -> Mapping[str, float]:
    """Leader of a stream -> what the traffic of one request per second costs per hour."""
    carried = flows(plan)
    return {
        stream.sources[0].name: sum(flow.cost_usd_per_h for flow in carried if flow.downstream in stream.operators)
        / stream.rate_per_s
        for stream in streams
    }
