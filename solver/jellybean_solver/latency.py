"""The p99 latency of a plan, queueing included, in closed form: fast enough to ask of every plan that a search finds.

A request on a route meets stations: workers, and links of limited bandwidth. Each is a queue whose mean wait follows
the formula of Kraemer and Langenbach-Belz for GI/G/1 (its correction for regular arrivals halved), with arrivals by
the rules of Whitt's Queueing Network Analyzer (Bell System Technical Journal, 1983): round robin makes a Poisson stream
more regular by the share that a worker gets, a busy station upstream smooths it, several operators on one worker
roughen it again. A wait is 0 with probability 1 - load, else exponential. The children of a request are one job, as
large as all of them, and so is whatever a request finds on one worker. Runs hold as many requests as come while one
goes on, up to the batch size.

Times add up along a route as logarithms of moment generating functions do: by Chernoff, P(L > t) is at most the
minimum over theta of M(theta) exp(-theta t), and for sums such as these about `TIGHTNESS` times smaller than that (7
for a normal tail at 1 %, 12 for an exponential one). `benchmarks/latency.py` holds it against the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jellybean_solver.distributions import quantile_points
from jellybean_solver.flows import flows
from jellybean_solver.plan import Plan, PlannedWorker, Route
from jellybean_solver.problem import Arrivals, Edge, ServiceTime, Times
from jellybean_solver.streams import request_streams

TIGHTNESS = 7.0
QUANTILE = 0.99
ROUGHNESS = 0.3  # of a stream that a round robin over routes of unequal weights leaves, as a share of Poisson's
RETURNS = 2.0  # waits of a request that finds several operators on one worker, as multiples of one wait
REGULAR = 0.5  # share of the correction for arrivals more regular than Poisson: routes are not perfectly regular
FULL = 0.9999  # a load from which a queue is taken to be without end
_PER_DECADE, _DECADES = 10, 5  # of theta

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Latency:
    """`p99_s` over all requests; `unqueued_s`: the mean time when nothing waits and everything is at its slowest.

    The slowest of what the plan uses, operator by operator and edge by edge, whether or not a route combines them:
    routes are redrawn when a worker fails.
    """

    p99_s: float
    unqueued_s: float

    def meets(self, target_s: float) -> bool:
        """Whether p99 is kept, and no combination of what is used is hopeless even without queues."""
        return max(self.p99_s, self.unqueued_s) <= target_s * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class _Queue:
    """A station's load and the mean of its waits that are not 0."""

    load: float
    wait_s: float

    def log_mgf(self, theta: Floats) -> Floats:
        if self.wait_s <= 0.0 or self.load <= 0.0:
            return np.zeros_like(theta)
        left = 1.0 - theta * self.wait_s
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(1.0 - self.load + self.load / left)
        return np.where(left > 0, value, np.inf)


def latency(plan: Plan) -> Latency:
    """Predicted latency of a plan's requests at its rates; inf where a queue would grow for ever."""
    return _Estimate(plan).latency()


def queueing(plan: Plan) -> Mapping[str, float]:
    """Seconds that a request waits on average at a worker of each pool, the longest of its workers."""
    waits: dict[str, float] = {}
    queues = _Estimate(plan).queues
    for worker in plan.workers:
        queue = queues[worker.name]
        waits[worker.pool] = max(waits.get(worker.pool, 0.0), queue.load * queue.wait_s)
    return waits


def visits(plan: Plan) -> Mapping[str, float]:
    """Runs of each operator per request."""
    found: dict[str, float] = {}
    for stream in request_streams(plan):
        for name in stream.operators:
            rate = plan.operator_by_name[name].rate_per_s
            found[name] = rate / stream.rate_per_s if stream.rate_per_s > 0 else 1.0
    return found


def jobs(visits_per_request: float) -> float:
    """Runs that one request brings at once: all its children; thinned streams bring one or none."""
    return max(1.0, visits_per_request)


def unqueued_s(times: Times, batch: int, jobs_at_once: float) -> float:
    """Mean seconds that a request's runs take when nothing waits: alone, or its children in full batches."""
    return max(times[1].mean_s, jobs_at_once * times[batch].mean_s / batch)


def service_of(times: Times, size: float) -> ServiceTime:
    """Time of a run of a size between profiled ones, spread as that of the next larger one."""
    sizes = sorted(times)
    above = min(known for known in sizes if known >= size - 1e-9)
    mean_s = float(np.interp(size, sizes, [times[known].mean_s for known in sizes]))
    return replace(times[above], mean_s=mean_s)


class _Estimate:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.visits = visits(plan)
        streams = request_streams(plan)
        self.arrivals_per_s = {name: stream.rate_per_s for stream in streams for name in stream.operators}
        self.roughness = {
            name: 1.0 if stream.arrivals is Arrivals.POISSON else 0.0 for stream in streams for name in stream.operators
        }
        self.sinks = [(stream.sinks, stream.rate_per_s) for stream in streams]
        self.sources = {source.name: source for source in plan.sources}
        self.links = {(link.upstream_tier, link.downstream_tier): link for link in plan.links}
        self.beside = self._beside()
        self.own: dict[tuple[str, str], Floats] = {}
        self.busy_above = self._busy_above()
        self.hosted = self._hosted()
        self.queues = {worker.name: self._worker(worker) for worker in plan.workers}
        self.link_queues = self._links()
        slowest = max((self._run_s(name, w) for w in plan.workers for name in w.rates_per_s), default=1.0)
        steps = np.arange(_PER_DECADE * _DECADES) / _PER_DECADE
        self.theta: Floats = 10.0 ** (steps - _DECADES + 2.0) / max(slowest, 1e-9)

    def latency(self) -> Latency:
        routes = self.plan.routes
        total = sum(rate for _, rate in self.sinks)
        tails: list[tuple[float, Floats]] = []
        for route in routes:
            reached = self._reached(route)
            for sinks, rate in self.sinks:
                tails.append((route.weight * rate / total, np.maximum.reduce([reached[name] for name in sinks])))
        return Latency(_quantile(self.theta, tails), self._unqueued_s())

    def _unqueued_s(self) -> float:
        slowest: dict[tuple[str, str], float] = {}  # edge -> seconds on a link
        for route in self.plan.routes:
            for operator in self.plan.operators:
                for edge in operator.inputs:
                    seconds = self._link_s(*self._crossed(route, edge))
                    key = (edge.upstream, edge.downstream)
                    slowest[key] = max(slowest.get(key, 0.0), seconds)
        ready = dict.fromkeys(self.sources, self.plan.hop_s)
        for operator in self.plan.operators:
            pools = dict.fromkeys(w.pool for w in self.plan.workers if operator.name in w.rates_per_s)
            begins = max(ready[e.upstream] + slowest[e.upstream, e.downstream] for e in operator.inputs)
            slowest_s = max(
                unqueued_s(operator.service[pool], operator.batch[pool], jobs(self.visits[operator.name]))
                for pool in pools
            )
            ready[operator.name] = begins + slowest_s
        return max(ready.values()) + self.plan.hop_s

    def _reached(self, route: Route) -> dict[str, Floats]:
        """Per operator the logarithm of the moment generating function of when its output is at the gateway."""
        plan, worker_of = self.plan, self.plan.worker_by_name
        reached: dict[str, Floats] = {}
        hop = self.theta * plan.hop_s
        for operator in plan.operators:
            worker = worker_of[route.workers[operator.name]]
            begins: Floats = np.zeros(len(self.theta))
            for edge in operator.inputs:
                upstream, downstream, size = self._crossed(route, edge)
                comes = self._crossing(upstream, downstream, size)
                comes = comes if route.workers.get(edge.upstream) == worker.name else comes + hop
                begins = np.maximum(begins, comes + reached.get(edge.upstream, 0.0))
            for other in self.beside[operator.name]:
                if route.workers[other] == worker.name:
                    begins = begins + self._own(other, worker)
            visited = list(route.workers.values()).count(worker.name)
            reached[operator.name] = begins + self._station(operator.name, worker, visited)
        return {name: time + hop for name, time in reached.items()}

    def _crossed(self, route: Route, edge: Edge) -> tuple[str, str, float]:
        """The tiers that a request's data on an edge goes between, and its bytes, all children together."""
        downstream = self.plan.worker_by_name[route.workers[edge.downstream]].tier
        source = self.sources.get(edge.upstream)
        if source is not None:
            return source.tier, downstream, source.message_bytes * jobs(self.visits[edge.downstream])
        upstream = self.plan.worker_by_name[route.workers[edge.upstream]].tier
        return upstream, downstream, self._sent(edge.upstream, edge.downstream) * jobs(self.visits[edge.downstream])

    def _sent(self, upstream: str, downstream: str) -> float:
        return self.plan.operator_by_name[upstream].message_bytes[downstream]

    def _link_s(self, upstream_tier: str, downstream_tier: str, size: float) -> float:
        if upstream_tier == downstream_tier:
            return 0.0
        link = self.links[upstream_tier, downstream_tier]
        return link.latency_s + (size / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)

    def _crossing(self, upstream_tier: str, downstream_tier: str, size: float) -> Floats:
        time = self.theta * self._link_s(upstream_tier, downstream_tier, size)
        queue = self.link_queues.get((upstream_tier, downstream_tier))
        return time + queue.log_mgf(self.theta) if queue is not None else time

    def _station(self, name: str, worker: PlannedWorker, visited: int) -> Floats:
        """Who comes back waits less each time: in all about as long as under processor sharing, twice as for once."""
        queue = self.queues[worker.name]
        queue = _Queue(queue.load, queue.wait_s * min(1.0, RETURNS / visited))
        return self._own(name, worker) + queue.log_mgf(self.theta)

    def _own(self, name: str, worker: PlannedWorker) -> Floats:
        if (name, worker.name) not in self.own:
            size = self._size(name, worker)
            service = service_of(self.plan.operator_by_name[name].service[worker.pool], size)
            runs = max(1.0, jobs(self.visits[name]) / size)
            self.own[name, worker.name] = service_log_mgf(service, self.theta * runs)
        return self.own[name, worker.name]

    def _run_s(self, name: str, worker: PlannedWorker) -> float:
        """Mean seconds of all of one request's runs."""
        size = self._size(name, worker)
        mean_s = service_of(self.plan.operator_by_name[name].service[worker.pool], size).mean_s
        return mean_s * max(1.0, jobs(self.visits[name]) / size)

    def _size(self, name: str, worker: PlannedWorker) -> float:
        """Requests in a run: one more than come while a run of that size, and what else the worker does, goes on."""
        operator = self.plan.operator_by_name[name]
        batch, rate = operator.batch[worker.pool], worker.rates_per_s[name]
        rest = 1.0 - max(0.0, worker.load - rate * operator.request_s(worker.pool))
        for size in range(1, batch):
            if rate * service_of(operator.service[worker.pool], size).mean_s <= size * rest:
                return min(batch, size + 1)
        return batch

    def _beside(self) -> Mapping[str, tuple[str, ...]]:
        """Earlier operators, neither above nor below: on one worker a request's own runs wait for each other."""
        above: dict[str, frozenset[str]] = {}
        found: dict[str, tuple[str, ...]] = {}
        for operator in self.plan.operators:
            direct = [edge.upstream for edge in operator.inputs if edge.upstream in above]
            found[operator.name] = tuple(above)
            above[operator.name] = frozenset(direct).union(*(above[name] for name in direct))
            found[operator.name] = tuple(n for n in found[operator.name] if n not in above[operator.name])
        return found

    def _job_s(self, name: str, worker: PlannedWorker) -> float:
        """A request's part of the runs that it is in."""
        size = self._size(name, worker)
        times = self.plan.operator_by_name[name].service[worker.pool]
        return service_of(times, size).mean_s / size * jobs(self.visits[name])

    def _busy_above(self) -> Mapping[str, float]:
        """Mean load of the workers just upstream of an operator; 0 at the sources."""
        loads: dict[str, float] = {}
        for operator in self.plan.operators:
            placed = [w for w in self.plan.workers if operator.name in w.rates_per_s]
            rate = sum(w.rates_per_s[operator.name] for w in placed)
            loads[operator.name] = (
                sum(w.load * w.rates_per_s[operator.name] for w in placed) / rate if rate > 0 else 0.0
            )
        above = {}
        for operator in self.plan.operators:
            from_ = [loads[edge.upstream] for edge in operator.inputs if edge.upstream in loads]
            above[operator.name] = min(from_) if len(from_) == len(operator.inputs) else 0.0
        return above

    def _worker(self, worker: PlannedWorker) -> _Queue:
        """One stream per set of operators that a request finds here: they are one job, as they come back one by one."""
        streams = []
        for names, share in self.hosted.get(worker.name, {}).items():
            first = names[0]
            chance = min(1.0, max(self.visits[name] for name in names))
            seconds = sum(self._job_s(name, worker) * min(1.0, self.visits[name]) for name in names) / chance
            together = max(self._size(name, worker) for name in names)
            spacing = min(1.0, self._spacing(first, share) / together + 1.0 - chance)
            per_s = self.arrivals_per_s[first] * share * chance
            streams.append((per_s / together, spacing, seconds * together))
        return _queue(streams, worker.load)

    def _spacing(self, name: str, share: float) -> float:
        """Squared variation of the times between a share of an operator's requests."""
        return self.roughness[name] * min(1.0, share) * (1.0 - self.busy_above[name] ** 2)

    def _hosted(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """Worker -> operators that one request meets there -> share of requests."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for route in self.plan.routes:
            met: dict[str, list[str]] = {}
            for operator in self.plan.operators:
                met.setdefault(route.workers[operator.name], []).append(operator.name)
            for worker, names in met.items():
                shares = found.setdefault(worker, {})
                shares[tuple(names)] = shares.get(tuple(names), 0.0) + route.weight
        return found

    def _links(self) -> Mapping[tuple[str, str], _Queue]:
        """Links take messages of all kinds as they come."""
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for flow in flows(self.plan):
            tiers = (flow.upstream_tier, flow.downstream_tier)
            link = self.links.get(tiers)
            if flow.crosses and link is not None and link.bandwidth_bytes_per_s and flow.messages_per_s > 0:
                burst = jobs(self.visits[flow.downstream])
                seconds = flow.bytes_per_s / flow.messages_per_s / link.bandwidth_bytes_per_s * burst
                per_s = flow.messages_per_s / burst
                spacing = self._spacing(flow.downstream, per_s / self.arrivals_per_s[flow.downstream])
                found.setdefault(tiers, []).append((per_s, spacing, seconds))
        return {
            tiers: _queue(streams, sum(per_s * seconds for per_s, _, seconds in streams))
            for tiers, streams in found.items()
        }


def _queue(streams: Sequence[tuple[float, float, float]], load: float) -> _Queue:
    """The queue of (jobs per second, squared variation of their spacing, seconds per job) streams at one server."""
    per_s = sum(rate for rate, _, _ in streams)
    if per_s <= 0 or load <= 0:
        return _Queue(0.0, 0.0)
    if load >= FULL:
        return _Queue(1.0, math.inf)
    mean = sum(rate * seconds for rate, _, seconds in streams) / per_s
    if mean <= 0:
        return _Queue(0.0, 0.0)
    sizes = sum(rate * seconds**2 for rate, _, seconds in streams) / per_s / mean**2 - 1.0
    kinds = 1.0 / sum((rate / per_s) ** 2 for rate, _, _ in streams)
    spacing = sum(rate / per_s * squared for rate, squared, _ in streams)
    spacing = ROUGHNESS + (1.0 - ROUGHNESS) * spacing
    own = 1.0 / (
        1.0 + 4.0 * (1.0 - load) ** 2 * (kinds - 1.0)
    )  # QNA (29): the share of superposition that is not Poisson
    spacing = own * spacing + 1.0 - own
    variation = max(spacing + sizes, 1e-12)
    calm = REGULAR * 2.0 * (1.0 - load) * (1.0 - min(1.0, spacing)) ** 2 / (3.0 * load * variation)
    return _Queue(load, mean * variation / 2.0 / (1.0 - load) * math.exp(-calm))


def service_log_mgf(service: ServiceTime, theta: Floats) -> Floats:
    """log E exp(theta S) of a run's time, its quantiles joined by straight lines; the mean alone is a constant."""
    points = quantile_points(service)
    if len(points) < 2:
        return theta * service.mean_s
    levels, values = np.array(points).T
    parts = []
    for width, low, high in zip(np.diff(levels), values[:-1], values[1:], strict=True):
        parts.append(np.log(width) + theta * high + _log_mean_exp(theta * (high - low)) if width > 0 else None)
    kept = [part for part in parts if part is not None]
    total: Floats = np.logaddexp.reduce(kept)
    return total


def _log_mean_exp(span: Floats) -> Floats:
    """log of the mean of exp(-x) for x uniform in [0, span]."""
    safe = np.maximum(span, 1e-9)
    return np.where(span > 1e-9, np.log(-np.expm1(-safe) / safe), 0.0)


def _quantile(theta: Floats, tails: Sequence[tuple[float, Floats]]) -> float:
    """The time that a share 1 - QUANTILE of the requests exceeds, by bisection over the sum of the routes' tails."""
    weights = np.array([weight for weight, _ in tails])
    logs = np.array([log for _, log in tails])
    allowed = 1.0 - QUANTILE

    def beyond(time: float) -> float:
        each = np.exp(np.minimum(np.min(logs - theta * time, axis=1), 0.0))
        return float(weights @ np.minimum(1.0, each / TIGHTNESS))

    with np.errstate(invalid="ignore"):
        alone = np.min((logs - math.log(TIGHTNESS * allowed)) / theta, axis=1)
    low, high = 0.0, float(np.max(alone, initial=0.0))
    if not math.isfinite(high):
        finite = weights[np.isfinite(alone)].sum()
        if finite < QUANTILE:
            return math.inf
        high = float(np.max(alone[np.isfinite(alone)], initial=0.0)) * 10.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if beyond(middle) <= allowed else (middle, high)
    return high
