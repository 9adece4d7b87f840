"""The p99 latency of a plan, queueing included, in closed form: fast enough to ask of every plan that a search finds.

A request on a route meets stations: workers, and links of limited bandwidth (`stations.py`), each a queue
(`queues.py`). The children of a request are one job, as large as all of them. Runs hold as many requests as come while
one goes on (`batching.py`), and what ran together comes together to the next station.

Times add up along a route as logarithms of moment generating functions do: by Chernoff, P(L > t) is at most the
minimum over theta of M(theta) exp(-theta t), and smaller than that by 7 for a normal tail at 1 %, by 12 for an
exponential one; here by `TIGHTNESS`, as waits are not independent. A burst of requests is the same burst all along a
route: it counts where it waits longest, once. `benchmarks/latency.py` holds all this against the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jellybean_solver.batching import service_of
from jellybean_solver.plan import Plan, PlannedWorker, Route
from jellybean_solver.problem import Times
from jellybean_solver.queues import Floats, Queue, service_log_mgf, uniform_log_mgf
from jellybean_solver.stations import Stations
from jellybean_solver.streams import request_streams

TIGHTNESS = 4.0  # fitted, as are the constants of `queues.py`, to other plans than the benchmark's
QUANTILE = 0.99
_PER_DECADE, _DECADES = 10, 5  # of theta


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


def latency(plan: Plan) -> Latency:
    """Predicted latency of a plan's requests at its rates; inf where a queue would grow for ever."""
    return _Estimate(plan).latency()


def queueing(plan: Plan) -> Mapping[str, float]:
    """Seconds that a request waits on average at a worker of each pool, the longest of its workers."""
    longest: dict[str, float] = {}
    for name, wait_s in waits(plan).items():
        pool = plan.worker_by_name[name].pool
        longest[pool] = max(longest.get(pool, 0.0), wait_s)
    return longest


def waits(plan: Plan) -> Mapping[str, float]:
    """Seconds that a request waits on average at each worker."""
    stations = Stations(plan)
    turns_s = dict.fromkeys((worker.name for worker in plan.workers), 0.0)
    for (_, name), runs in stations.runs.items():
        turns_s[name] = max(turns_s[name], runs.turn_s)
    queues = stations.workers.items()
    return {name: max(queue.bursts.mean_s, turns_s[name]) + queue.own.mean_s for name, queue in queues}


def unqueued_s(times: Times, batch: int, jobs_at_once: float) -> float:
    """Mean seconds that a request's runs take when nothing waits: alone, or its children in full batches."""
    return max(times[1].mean_s, jobs_at_once * times[batch].mean_s / batch)


@dataclass(frozen=True, slots=True)
class _Burst:
    """A burst of requests on a route, as one variable: the longest mean wait for it, and what it adds to all runs."""

    load: float = 0.0
    wait_s: float = 0.0
    shared_s: float = 0.0

    def or_else(self, other: _Burst) -> _Burst:
        """The slower of each part."""
        wait_s, shared_s = max(self.wait_s, other.wait_s), max(self.shared_s, other.shared_s)
        return _Burst(max(self.load, other.load), wait_s, shared_s)

    @property
    def queue(self) -> Queue:
        return Queue(self.load, (self.wait_s + self.shared_s) / self.load) if self.load > 0 else Queue()


class _Estimate:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stations = Stations(plan)
        self.streams = request_streams(plan)
        self.beside = self._beside()
        self.own: dict[tuple[str, str], Floats] = {}
        self.shared_s: dict[tuple[str, str], float] = {}
        slowest = max((self._run_s(name, w) for w in plan.workers for name in w.rates_per_s), default=1.0)
        steps = np.arange(_PER_DECADE * _DECADES) / _PER_DECADE
        self.theta: Floats = 10.0 ** (steps - _DECADES + 2.0) / max(slowest, 1e-9)
        self.waits = {name: queues.own.log_mgf(self.theta) for name, queues in self.stations.workers.items()}

    def latency(self) -> Latency:
        total = sum(stream.rate_per_s for stream in self.streams)
        tails: list[tuple[float, Floats]] = []
        for route in self.plan.routes:
            reached = self._reached(route)
            for stream in self.streams:
                slowest = np.maximum.reduce([reached[name] for name in stream.sinks])
                tails.append((route.weight * stream.rate_per_s / total, slowest))
        return Latency(_quantile(self.theta, tails), self._unqueued_s())

    def _unqueued_s(self) -> float:
        stations = self.stations
        slowest: dict[tuple[str, str], float] = {}  # edge -> seconds on a link
        for route in self.plan.routes:
            for operator in self.plan.operators:
                for edge in operator.inputs:
                    seconds = stations.link_s(*stations.crossed(route, edge))
                    key = (edge.upstream, edge.downstream)
                    slowest[key] = max(slowest.get(key, 0.0), seconds)
        ready = dict.fromkeys(stations.sources, self.plan.hop_s)
        for operator in self.plan.operators:
            pools = dict.fromkeys(w.pool for w in self.plan.workers if operator.name in w.rates_per_s)
            begins = max(ready[e.upstream] + slowest[e.upstream, e.downstream] for e in operator.inputs)
            slowest_s = max(
                unqueued_s(operator.service[pool], operator.batch[pool], stations.jobs(operator.name)) for pool in pools
            )
            ready[operator.name] = begins + slowest_s
        return max(ready.values()) + self.plan.hop_s

    def _reached(self, route: Route) -> dict[str, Floats]:
        """Per sink the logarithm of the moment generating function of when its output is at the gateway."""
        reached: dict[str, Floats] = {}
        bursts: dict[str, _Burst] = {}
        hop, start = self.theta * self.plan.hop_s, np.zeros(len(self.theta))
        met: dict[str, list[str]] = {}
        for name, there in route.workers.items():
            met.setdefault(there, []).append(name)
        for operator in self.plan.operators:
            name, worker = operator.name, self.plan.worker_by_name[route.workers[operator.name]]
            begins, burst = start, self._burst(worker, met[worker.name])
            for edge in operator.inputs:
                comes, waits = self._crossing(*self.stations.crossed(route, edge))
                comes = comes if route.workers.get(edge.upstream) == worker.name else comes + hop
                begins = np.maximum(begins, comes + reached.get(edge.upstream, start))
                burst = burst.or_else(waits).or_else(bursts.get(edge.upstream, waits))
            for other in self.beside[name]:
                if route.workers[other] == worker.name:
                    begins = begins + self._own(other, worker)
            reached[name] = begins + self._own(name, worker) + self.waits[worker.name]
            bursts[name] = replace(burst, shared_s=burst.shared_s + self.shared_s[name, worker.name])
        sinks = [name for stream in self.streams for name in stream.sinks]
        return {name: reached[name] + hop + bursts[name].queue.log_mgf(self.theta) for name in sinks}

    def _burst(self, worker: PlannedWorker, met: Sequence[str]) -> _Burst:
        """The wait for bursts of a request that meets these operators on a worker, less its turns.

        Who comes back waits less each time: in all as long as under processor sharing at most, twice as for once.
        """
        queue = self.stations.workers[worker.name].bursts
        wait_s = queue.mean_s * 2.0 * len(met) / (1.0 + len(met))
        turns_s = sum(self.stations.runs[name, worker.name].turn_s for name in met)
        return _Burst(queue.load, max(0.0, wait_s - turns_s))

    def _crossing(self, upstream_tier: str, downstream_tier: str, size: float) -> tuple[Floats, _Burst]:
        """Time on a link, and the wait for bursts apart."""
        time = self.theta * self.stations.link_s(upstream_tier, downstream_tier, size)
        queues = self.stations.links.get((upstream_tier, downstream_tier))
        if queues is None:
            return time, _Burst()
        return time + queues.own.log_mgf(self.theta), _Burst(queues.bursts.load, queues.bursts.mean_s)

    def _own(self, name: str, worker: PlannedWorker) -> Floats:
        """A request's own runs on a worker, and those of requests that come with it.

        What they take longer because of a burst is put down in `shared_s`, mean seconds: the burst is the same on all
        of a route.
        """
        key = name, worker.name
        if key not in self.own:
            found, alike = self.stations.runs[key], 1.0 - self.stations.roughness(name, worker)
            times = self.plan.operator_by_name[name].service[worker.pool]
            needed = self.stations.jobs(name)
            least = min(needed, found.seen)
            service = service_of(times, least + (found.seen - least) * alike)
            more_s = service_of(times, found.seen).mean_s - service_of(times, least).mean_s
            mates = max(0.0, self.stations.groups[key] - max(found.seen, needed)) / 2.0
            count = max(1.0, needed / found.seen) + mates / found.seen
            turn = uniform_log_mgf(found.turn_s, self.theta)
            self.own[key] = service_log_mgf(service, self.theta * count) + turn
            self.shared_s[key] = (1.0 - alike) * more_s
        return self.own[key]

    def _run_s(self, name: str, worker: PlannedWorker) -> float:
        """Mean seconds of all of one request's runs."""
        size = self.stations.runs[name, worker.name].seen
        mean_s = service_of(self.plan.operator_by_name[name].service[worker.pool], size).mean_s
        return mean_s * max(1.0, self.stations.jobs(name) / size)

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


def _quantile(theta: Floats, tails: Sequence[tuple[float, Floats]]) -> float:
    """The time that a share 1 - QUANTILE of the requests exceeds, by bisection over the sum of the routes' tails."""
    weights = np.array([weight for weight, _ in tails])
    logs = np.array([log for _, log in tails])
    allowed = 1.0 - QUANTILE

    def beyond(time: float) -> float:
        bound = np.exp(np.minimum(np.min(logs - theta * time, axis=1), 0.0))
        return float(weights @ (bound / (bound + TIGHTNESS * (1.0 - bound))))  # 1 up to the mean

    with np.errstate(invalid="ignore"):
        odds = TIGHTNESS * allowed / (1.0 - allowed)
        alone = np.min((logs - math.log(odds / (1.0 + odds))) / theta, axis=1)
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
