"""Rate traces: piecewise constant rates, load and network cost of a plan under them, and sampling of long traces.

Time runs from 0 at the trace's start. A stretch is a span in which no rate changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from jellybean_solver.errors import SolverError
from jellybean_solver.model.flows import Flow, flows
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.streams import RequestStream

MOST_REQUESTS = 500_000  # longer traces are sampled; simulating this many takes a minute or two
BUSY = 0.9  # utilisation from which a stretch is simulated in full, because queues build up over its length


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of constant rates (requests per second by source). Only its first `simulated_s` seconds are replayed."""

    start_s: float
    end_s: float
    rates_per_s: Mapping[str, float]
    simulated_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class RateTrace:
    """Stretches in order, each beginning where the previous one ends."""

    stretches: tuple[Stretch, ...]

    @cached_property
    def length_s(self) -> float:
        return sum(stretch.length_s for stretch in self.stretches)

    @cached_property
    def simulated_s(self) -> float:
        """Virtual time of a replay; less than the trace's length if it is sampled."""
        return sum(stretch.simulated_s for stretch in self.stretches)

    @cached_property
    def peaks_per_s(self) -> Mapping[str, float]:
        """Highest rate of each source."""
        return {name: max(s.rates_per_s[name] for s in self.stretches) for name in self.stretches[0].rates_per_s}

    def pieces(self, source: str) -> tuple[tuple[float, float], ...]:
        """(virtual end, rate per second) of a source; consecutive stretches of equal rate are one piece."""
        ends = accumulate(stretch.simulated_s for stretch in self.stretches)
        found: list[tuple[float, float]] = []
        for end_s, stretch in zip(ends, self.stretches, strict=True):
            rate = stretch.rates_per_s[source]
            if found and found[-1][1] == rate:
                found.pop()
            found.append((end_s, rate))
        return tuple(found)


def rate_trace(times_s: Sequence[float], end_s: float, rates_per_s: Mapping[str, Sequence[float]]) -> RateTrace:
    """A trace from the times at which rates change (ascending from 0) and each source's rates from then on."""
    ends = [*times_s[1:], end_s]
    rates = [value for values in rates_per_s.values() for value in values]
    if not times_s or times_s[0] != 0 or any(a >= b for a, b in zip(times_s, ends, strict=True)):
        raise SolverError("a trace's times must ascend from 0 to its end")
    if any(len(values) != len(times_s) for values in rates_per_s.values()) or not all(0 <= r < 1e12 for r in rates):
        raise SolverError("a trace needs a rate of at least 0 for every source at every time")
    return RateTrace(
        tuple(
            Stretch(start, end, {name: values[index] for name, values in rates_per_s.items()}, end - start)
            for index, (start, end) in enumerate(zip(times_s, ends, strict=True))
        )
    )


def sampled(
    trace: RateTrace, leaders: Sequence[str], loads: Sequence[Mapping[str, float]], most_requests: int = MOST_REQUESTS
) -> RateTrace:
    """The trace as replayed: unchanged up to `most_requests` requests, else with quiet stretches shortened.

    `leaders`: one source per request stream; `loads`: per stretch, worker or link -> utilisation. A stretch is quiet if
    no utilisation reaches 0.9 and no earlier one above 1 has left a backlog; other stretches stay whole, because queues
    take time to build up. All quiet stretches keep the same share of their length. SolverError if the busy stretches
    alone exceed `most_requests`.
    """
    rates = [sum(stretch.rates_per_s[name] for name in leaders) for stretch in trace.stretches]
    requests = [stretch.length_s * rate for stretch, rate in zip(trace.stretches, rates, strict=True)]
    if sum(requests) <= most_requests:
        return trace
    busy = _busy(trace, loads)
    whole = sum(count for count, is_busy in zip(requests, busy, strict=True) if is_busy)
    if whole > most_requests:
        raise SolverError(
            f"the trace is too long to replay: {sum(requests):,.0f} requests, {whole:,.0f} of them at times when a "
            f"worker or link is busy {BUSY:.0%} of the time or more, which cannot be sampled; replay shorter parts "
            f"(at most {most_requests:,} such requests)"
        )
    share = (most_requests - whole) / (sum(requests) - whole)
    return RateTrace(
        tuple(
            s if is_busy else Stretch(s.start_s, s.end_s, s.rates_per_s, share * s.length_s)
            for s, is_busy in zip(trace.stretches, busy, strict=True)
        )
    )


def _busy(trace: RateTrace, loads: Sequence[Mapping[str, float]]) -> list[bool]:
    """Per stretch, true if a queue may be long: a high load, or a backlog of earlier stretches."""
    work_s: dict[str, float] = {}
    found: list[bool] = []
    for stretch, load in zip(trace.stretches, loads, strict=True):
        found.append(max(load.values(), default=0.0) >= BUSY or any(work > 0 for work in work_s.values()))
        for name, value in load.items():
            work_s[name] = max(0.0, work_s.get(name, 0.0) + (value - 1.0) * stretch.length_s)
    return found


def copies(plan: Plan) -> dict[str, int]:
    """Number of sites that have each worker and link of the plan."""
    found = {worker.name: plan.sites_of(worker.tier) for worker in plan.workers}
    for link in plan.links:
        found[f"{link.upstream_tier}->{link.downstream_tier}"] = plan.sites_of(link.upstream_tier)
    return found


def stretch_loads(plan: Plan, streams: Sequence[RequestStream], trace: RateTrace) -> list[Mapping[str, float]]:
    """Mean utilisation of every worker and link in each stretch of the trace."""
    carried = flows(plan)
    at_one = {stream.sources[0].name: _loads_at_one(plan, stream, carried) for stream in streams}
    found: list[Mapping[str, float]] = []
    for stretch in trace.stretches:
        loads: dict[str, float] = {}
        for name, share in at_one.items():
            for place, load in share.items():
                loads[place] = loads.get(place, 0.0) + load * stretch.rates_per_s[name]
        found.append(loads)
    return found


def _loads_at_one(plan: Plan, stream: RequestStream, carried: Sequence[Flow]) -> Mapping[str, float]:
    """Utilisation of workers and links by one request per second of a stream. `carried`: the plan's flows."""
    loads: dict[str, float] = {}
    alike = copies(plan)
    for worker in plan.workers:
        own = [
            (plan.operator_at(name, worker.name), rate)
            for name, rate in worker.rates_per_s.items()
            if name in stream.operators
        ]
        loads[worker.name] = sum(rate * o.mean_request_s(worker.pool) for o, rate in own) / stream.rate_per_s
    bandwidth = {link.tiers: link.bandwidth_bytes_per_s for link in plan.links}
    for flow in carried:
        limit = bandwidth.get((flow.upstream_tier, flow.downstream_tier))
        if flow.crosses and flow.downstream in stream.operators and limit:
            place = f"{flow.upstream_tier}->{flow.downstream_tier}"
            loads[place] = loads.get(place, 0.0) + flow.bytes_per_s / limit / stream.rate_per_s / alike[place]
    return loads


def network_usd_per_h(plan: Plan, streams: Sequence[RequestStream]) -> Mapping[str, float]:
    """First source of each stream -> USD per hour of the traffic of one request per second."""
    carried = flows(plan)
    return {
        stream.sources[0].name: sum(flow.cost_usd_per_h for flow in carried if flow.downstream in stream.operators)
        / stream.rate_per_s
        for stream in streams
    }
