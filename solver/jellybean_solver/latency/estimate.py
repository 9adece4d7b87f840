"""The p99 latency of a plan with queueing, in closed form: fast enough for every plan that a search finds.

A request visits stations along its route: workers, and links of limited bandwidth (`stations.py`), each a queue
(`queues.py`). The children of a request count as one job of their total size. Runs take the requests that arrive during
the previous run (`batching.py`), and requests of one run arrive together at the next station. If an operator has a
batch delay, every request is taken to wait for all of it.

Times along a route add up as logarithms of moment generating functions. By Chernoff's bound P(L > t) <= min over theta
of M(theta) exp(-theta t). At 1 %, the true tail is smaller than the bound by a factor of 7 if it is normal and of 12 if
exponential; the factor here is `TIGHTNESS`, as waits are dependent. A burst of requests is the same burst all along a
route, so it counts once, where its wait is longest. Operators that few requests visit (`PlanArrivals.rare`) are left
out if that gives less; these requests then count as above the p99. `benchmarks/latency.py` compares the result with the
simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jellybean_solver.latency.batching import service_of
from jellybean_solver.latency.plan_arrivals import NOTHING, Rare
from jellybean_solver.latency.plan_batches import rounded_key
from jellybean_solver.latency.queues import service_log_mgf, wait_log_mgf
from jellybean_solver.latency.stations import Stations
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.critical_path import completion_times
from jellybean_solver.model.flows import link_s
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.workflow import Arrivals, Edge, Times

TIGHTNESS = 4.0  # fitted, as the constants of `queues.py`, on plans that are not in the benchmark
QUANTILE = 0.99
# Lowest and highest measured ratio to the simulated p99 (docs/benchmarks.md: latency_estimate; docs/limits.md).
CLOSED_FORM_RATIO = (0.89, 3.09)
_PER_DECADE, _DECADES = 10, 5  # grid of theta: points per decade, decades


@dataclass(frozen=True, slots=True)
class Latency:
    """`p99_s`: p99 latency of all requests; `unqueued_s`: mean latency on the slowest workers and links, no queueing.

    The slowest is taken operator by operator and edge by edge, whether or not a route combines them, because routes are
    redrawn when a worker fails. With several workflows, both figures are those of the workflow that is slowest relative
    to its deadline, scaled to the longest deadline (deadline_shares.py).
    """

    p99_s: float
    unqueued_s: float

    @property
    def slowest_s(self) -> float:
        """The larger of p99 and unqueued time."""
        return max(self.p99_s, self.unqueued_s)

    def meets(self, target_s: float) -> bool:
        """True if p99 and the slowest unqueued combination are within the target."""
        return self.slowest_s <= target_s * (1 + 1e-9)


def latency(plan: Plan) -> Latency:
    """Predicted latency of a plan's requests at its rates; inf if a queue is unstable."""
    estimates = _estimates(plan)
    p99_s, shares = _least_p99_s(estimates), plan.deadline_shares
    slowest_s = max(p99_s[workflow] / share for workflow, share in shares.items())
    return Latency(slowest_s, min(one.unqueued_s() for one in estimates))


def p99_by_workflow(plan: Plan) -> Mapping[str, float]:
    """Predicted p99 latency in seconds by workflow with a deadline; a single workflow has the name ""."""
    return _least_p99_s(_estimates(plan))


def mean_waits_s(plan: Plan) -> Mapping[str, float]:
    """Mean wait in seconds at each worker."""
    stations = Stations(plan)
    turns_s = dict.fromkeys((worker.name for worker in plan.workers), 0.0)
    for (_, name), runs in stations.batches.runs.items():
        turns_s[name] = max(turns_s[name], runs.turn_s)
    queues = stations.workers.items()
    return {name: max(queue.bursts.mean_s, turns_s[name]) + queue.own.mean_s for name, queue in queues}


def unqueued_s(times: Times, batch: int, jobs_at_once: float) -> float:
    """Mean seconds of a request's runs with zero queueing delay: one run, or full batches of its children."""
    return max(times[1].mean_s, jobs_at_once * times[batch].mean_s / batch)


@dataclass(frozen=True, slots=True)
class _Bursts:
    """The wait for a burst, per route: probability of waiting, longest mean wait, and extra seconds in runs."""

    load: Floats
    wait_s: Floats
    shared_s: Floats

    def or_else(self, other: _Bursts) -> _Bursts:
        """The element-wise maximum of each field."""
        wait_s, shared_s = np.maximum(self.wait_s, other.wait_s), np.maximum(self.shared_s, other.shared_s)
        return _Bursts(np.maximum(self.load, other.load), wait_s, shared_s)

    def log_mgf(self, theta: Floats) -> Floats:
        wait_s = np.divide(self.wait_s + self.shared_s, self.load, out=np.zeros_like(self.load), where=self.load > 0)
        return wait_log_mgf(self.load[:, None], wait_s[:, None], theta)


class _Estimate:
    """The estimate for one plan. Arrays have one row per route and one column per theta, unless stated."""

    def __init__(self, stations: Stations, rare: Rare = NOTHING) -> None:
        """`rare`: the operators that are left out."""
        self.plan = plan = stations.plan
        self.stations, self.rare = stations, rare
        self.arrivals, self.batches = self.stations.arrivals, self.stations.batches
        self.table, self.streams, self.stream = self.arrivals.table, self.arrivals.streams, self.arrivals.stream_of
        self.beside = self._beside()
        self.own: dict[str, tuple[Floats, Floats, Indices]] = {}
        slowest = max((self._run_s(name, w) for w in plan.workers for name in w.rates_per_s), default=1.0)
        steps = np.arange(_PER_DECADE * _DECADES) / _PER_DECADE
        self.theta: Floats = 10.0 ** (steps - _DECADES + 2.0) / max(slowest, 1e-9)
        own = [self.stations.workers[worker.name].own for worker in plan.workers]
        loads, mean_waits_s = np.array([queue.load for queue in own]), np.array([queue.wait_s for queue in own])
        self.waits = wait_log_mgf(loads[:, None], mean_waits_s[:, None], self.theta)  # per worker

    def unqueued_s(self) -> float:
        """See `Latency`."""
        ready_s, slowest_s, own = self._unqueued_s(), 0.0, self.plan.deadline_shares
        for stream in self.streams:
            if stream.workflow in own:
                slowest_s = max(slowest_s, max(ready_s[name] for name in stream.operators) / own[stream.workflow])
        return slowest_s

    def p99_by_workflow(self) -> Mapping[str, float]:
        reached, delays_s = self._reached(), self._delays_s()
        found: dict[str, float] = {}
        for workflow in self.plan.deadline_shares:
            streams = [stream for stream in self.streams if stream.workflow == workflow]
            total = sum(stream.rate_per_s for stream in streams)
            weights = [self.table.weight * stream.rate_per_s / total for stream in streams]
            slowest = [np.maximum.reduce([reached[name] for name in stream.sinks]) for stream in streams]
            allowed = 1.0 - QUANTILE - self.rare.shares.get(workflow, 0.0)
            own_s = _quantile(self.theta, np.concatenate(weights), np.concatenate(slowest), allowed)
            delay_s = max(delays_s[name] for stream in streams for name in stream.sinks)
            found[workflow] = own_s + delay_s
        return found

    def _unqueued_s(self) -> Mapping[str, float]:
        """Per operator the seconds until its output reaches the gateway, unqueued, on the slowest pools and links."""

        def slowest_run_s(name: str) -> float:
            if name in self.rare.operators:
                return 0.0
            variants, jobs = self.plan.operator_by_name[name].variants, self.arrivals.jobs(name)
            return max(unqueued_s(one.service[pool], one.batch[pool], jobs) for one in variants for pool in one.service)

        def slowest_link_s(edge: Edge) -> float:
            if self._is_rare(edge):
                return 0.0
            size = self.arrivals.sent_bytes(edge)
            return max(link_s(self.plan, pair, size) for pair in self.table.crossings(edge)[0])

        hop_s, delays_s = self.plan.hop_s, self._delays_s()
        completed_s = completion_times(self.plan.operators, slowest_run_s, slowest_link_s, ready=hop_s)
        return {name: seconds + hop_s + delays_s[name] for name, seconds in completed_s.items()}

    def _delays_s(self) -> Mapping[str, float]:
        """Per operator the largest sum of batch delays on a path to it, in seconds."""

        def own_s(name: str) -> float:
            if name in self.rare.operators:
                return 0.0
            variants = self.plan.operator_by_name[name].variants
            batched = any(max(one.batch.values(), default=1) > 1 for one in variants)
            return variants[0].batch_delay_s if batched else 0.0

        return completion_times(self.plan.operators, own_s)

    def _reached(self) -> dict[str, Floats]:
        """Per sink the log moment generating function of the time at which its output reaches the gateway."""
        reached: dict[str, Floats] = {}
        bursts: dict[str, _Bursts] = {}
        hop, start = self.theta * self.plan.hop_s, np.zeros((len(self.table.weight), len(self.theta)))
        for operator in self.plan.operators:
            name, at = operator.name, self.table.at[operator.name]
            if name in self.rare.operators:
                reached[name] = np.maximum.reduce([reached.get(edge.upstream, start) for edge in operator.inputs])
                bursts[name] = self._bursts(operator, bursts)
                continue
            begins, burst = start, self._met(name).or_else(self._bursts(operator, bursts))
            for edge in operator.inputs:
                if self._is_rare(edge):
                    begins = np.maximum(begins, reached.get(edge.upstream, start))
                    continue
                comes, mean_waits_s = self._crossing(edge)
                moves = np.ones(len(at), bool) if edge.upstream not in reached else self.table.at[edge.upstream] != at
                comes = comes + np.where(moves[:, None], hop, 0.0)
                begins = np.maximum(begins, comes + reached.get(edge.upstream, start))
                burst = burst.or_else(mean_waits_s)
            for other in self.beside[name]:
                together = self.table.at[other] == at
                if together.any():
                    begins = begins + np.where(together[:, None], self._own(other)[0], 0.0)
            own, shared_s = self._own(name)
            reached[name] = begins + own + self.waits[at]
            bursts[name] = replace(burst, shared_s=burst.shared_s + shared_s)
        sinks = [name for stream in self.streams for name in stream.sinks]
        return {name: reached[name] + hop + bursts[name].log_mgf(self.theta) for name in sinks}

    def _is_rare(self, edge: Edge) -> bool:
        """True for an edge whose messages are left out."""
        return edge.upstream in self.rare.operators or edge.downstream in self.rare.operators

    def _bursts(self, operator: PlannedOperator, known: Mapping[str, _Bursts]) -> _Bursts:
        """The wait for bursts of the operators above."""
        none = np.zeros(len(self.table.weight))
        found = _Bursts(none, none, none)
        for edge in operator.inputs:
            found = found.or_else(known.get(edge.upstream, found))
        return found

    def _met(self, name: str) -> _Bursts:
        """Wait for bursts at an operator's worker, less the wait for its next run, which is counted separately.

        A revisit waits less; all visits together wait at most twice as long as one (processor sharing).
        """
        at, count = self.table.at[name], self._visits(name)
        turns_s = sum(
            np.where(self.table.at[other] == at, self._turns_s[other][at], 0.0) for other in self._mates(name)
        )
        load, mean_s = self._queues
        wait_s = mean_s[at] * 2.0 * count / (1.0 + count)
        return _Bursts(load[at], np.maximum(0.0, wait_s - turns_s), np.zeros(len(at)))

    def _visits(self, name: str) -> Floats:
        """Number of visits of a request to the operator's worker, by route."""
        at = self.table.at[name]
        count: Floats = np.sum([self.table.at[other] == at for other in self._mates(name)], axis=0, dtype=float)
        return count

    def _mates(self, name: str) -> list[str]:
        """Operators of the same request stream as this one, itself included."""
        counted = (other for other in self.table.at if other not in self.rare.operators)
        return [other for other in counted if self.stream[other] == self.stream[name]]

    @cached_property
    def _queues(self) -> tuple[Floats, Floats]:
        """Load and mean wait of the burst queue at each worker."""
        queues = [self.stations.workers[worker.name].bursts for worker in self.plan.workers]
        return np.array([queue.load for queue in queues]), np.array([queue.mean_s for queue in queues])

    @cached_property
    def _turns_s(self) -> Mapping[str, Floats]:
        """Per operator and worker the mean seconds until its next run."""
        found = {name: np.zeros(len(self.plan.workers)) for name in self.table.at}
        for number, worker in enumerate(self.plan.workers):
            for name in worker.rates_per_s:
                found[name][number] = self.batches.runs[name, worker.name].turn_s
        return found

    def _crossing(self, edge: Edge) -> tuple[Floats, _Bursts]:
        """Log moment generating function of the time on an edge's link, and separately the wait for bursts there."""
        size = self.arrivals.sent_bytes(edge)
        pairs, each = self.table.crossings(edge)
        times = np.array([self.theta * link_s(self.plan, pair, size) for pair in pairs])
        load, mean_s = np.zeros(len(pairs)), np.zeros(len(pairs))
        for number, pair in enumerate(pairs):
            queues = self.stations.links.get(pair)
            if queues is not None:
                times[number] += queues.own.log_mgf(self.theta)
                load[number], mean_s[number] = queues.bursts.load, queues.bursts.mean_s
        return times[each], _Bursts(load[each], mean_s[each], np.zeros(len(each)))

    def _own(self, name: str) -> tuple[Floats, Floats]:
        """Per route: log moment generating function of a request's runs, and mean extra seconds that a burst adds.

        The extra time is returned separately, because the same burst delays all stations of a route.
        """
        if name not in self.own:
            known: dict[object, tuple[Floats, float]] = {}
            found: list[tuple[Floats, float]] = []
            workers, each = np.unique(self.table.at[name], return_inverse=True)
            visits = np.full(len(workers), np.inf)
            np.minimum.at(visits, each, self._visits(name))
            for worker, count in zip((self.plan.workers[n] for n in workers.tolist()), visits.tolist(), strict=True):
                runs, roughness = self.batches.runs[name, worker.name], self.arrivals.roughness(name, worker)
                group = self.batches.groups[name, worker.name]
                turn = runs.turn.chance, runs.turn.span_s, runs.turn.handed, runs.turn.spread_s
                key = worker.pool, rounded_key([(runs.mean, runs.seen, *turn, roughness, group, count)])
                if key not in known:
                    known[key] = self._own_at(name, worker, 1.0 - roughness, count)
                found.append(known[key])
            logs, shared_s = np.array([log for log, _ in found]), np.array([more for _, more in found])
            self.own[name] = logs, shared_s, each
        logs, shared_s, each = self.own[name]
        return logs[each], shared_s[each]

    def _own_at(self, name: str, worker: PlannedWorker, regular: float, visits: float) -> tuple[Floats, float]:
        """The values of `_own` at one worker. `visits`: least number of visits of a request to it.

        A revisit waits less for the next run: between no reduction and that of processor sharing (`_met`) if arrivals
        are regular; with random arrivals all visits wait for the burst.
        """
        runs, needed = self.batches.runs[name, worker.name], self.arrivals.jobs(name)
        times = self.plan.operator_at(name, worker.name).service[worker.pool]
        least = min(needed, runs.seen)
        service = service_of(times, least + (runs.seen - least) * regular)
        more_s = service_of(times, runs.seen).mean_s - service_of(times, least).mean_s
        mates = max(0.0, self.batches.groups[name, worker.name] - max(runs.seen, needed)) / 2.0
        count = max(1.0, needed / runs.seen) + mates / runs.seen
        less = 1.0 if any(s.arrivals is Arrivals.POISSON for s in self.streams) else math.sqrt(2.0 / (1.0 + visits))
        turn = runs.turn.log_mgf(self.theta * less, service)
        return service_log_mgf(service, self.theta * count) + turn, (1.0 - regular) * more_s

    def _run_s(self, name: str, worker: PlannedWorker) -> float:
        """Mean seconds of all runs of one request."""
        size = self.batches.runs[name, worker.name].seen
        mean_s = service_of(self.plan.operator_at(name, worker.name).service[worker.pool], size).mean_s
        return mean_s * max(1.0, self.arrivals.jobs(name) / size)

    def _beside(self) -> Mapping[str, tuple[str, ...]]:
        """Per operator the earlier ones that are neither ancestors nor descendants.

        On the same worker, their runs for one request queue behind each other.
        """
        above: dict[str, frozenset[str]] = {}
        found: dict[str, tuple[str, ...]] = {}
        for operator in self.plan.operators:
            direct = [edge.upstream for edge in operator.inputs if edge.upstream in above]
            found[operator.name] = tuple(above)
            above[operator.name] = frozenset(direct).union(*(above[name] for name in direct))
            skipped = above[operator.name] | self.rare.operators
            others = (n for n in found[operator.name] if n not in skipped)
            found[operator.name] = tuple(n for n in others if self.stream[n] == self.stream[operator.name])
        return found


def _estimates(plan: Plan) -> Sequence[_Estimate]:
    """The estimate of all operators and, if there are rare ones, that without them."""
    stations = Stations(plan)
    rare = stations.arrivals.rare
    return [_Estimate(stations), *([_Estimate(stations, rare)] if rare.operators else [])]


def _least_p99_s(estimates: Sequence[_Estimate]) -> Mapping[str, float]:
    """Workflow -> the least of its p99 latencies."""
    found = [one.p99_by_workflow() for one in estimates]
    return {workflow: min(one[workflow] for one in found) for workflow in found[0]}


def _quantile(theta: Floats, weights: Floats, logs: Floats, allowed: float) -> float:
    """The latency that a share `allowed` of requests exceeds, by bisection on the sum of the routes' tail bounds."""

    def beyond(time: float) -> float:
        bound = np.exp(np.minimum(np.min(logs - theta * time, axis=1), 0.0))
        return float(weights @ (bound / (bound + TIGHTNESS * (1.0 - bound))))  # equals 1 up to the mean

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
