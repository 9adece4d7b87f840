"""Simulate plans in virtual time, with the agents' own scheduling code (`Brain`)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from jellybean_agent import FAIR_QUEUEING_FROM, BatchPolicy, Brain, OperatorWiring, SiteRoutes, Sites
from jellybean_solver import (
    DEFAULT_WINDOW_S,
    Arrivals,
    Edge,
    MakeTimes,
    Plan,
    PlannedWorker,
    RequestStream,
    SimulationResult,
    SimulationSettings,
    arrival_times,
    grace_s,
    highest_sustained,
    is_sustained,
    link_uses,
    mean_waits_s,
    request_streams,
    simulate,
    worker_at,
)

REQUESTS = 2_000  # simulated requests of the slowest stream: p99 is estimated from at least 20 requests
SITE_REQUESTS = 10  # minimum number of simulated requests per site
MANY_SITES = 100  # from this number of sites on, one seed is enough
MAX_REQUESTS = 50_000  # simulated requests of all streams together
PROBE_REQUESTS = 20_000  # requests of all streams in one probe of the search for the highest sustained rate
WARMUP_SHARE = 0.1  # warm-up, as a share of the measured window
SPACING = 100.0  # spacing of requests without queueing, as a multiple of the service time of one request
SEEDS = 5  # simulations with different seeds; the median of their p99 latencies is compared with the target
# A quick decision rejects a plan whose first p99 exceeds the target by this factor; that may be wrong for some plans.
QUICK_FAR = 1.25
FAR = 2.0  # p99 latencies of one plan with different seeds differ by less than this factor


def simulate_plan(
    plan: Plan,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    warmup_s: float | None = None,
    rate_scale: float = 1.0,
    arrivals: Arrivals | None = None,
    drain_s: float | None = None,
) -> SimulationResult:
    """Simulate latency, throughput and queues of a plan at its rates times `rate_scale`.

    The measured window has by default at least 60 s and 2,000 to 50,000 requests, after a warm-up of a tenth of the
    window. With several sites, queues start at their stationary length, because each site gets few requests.
    """
    stationary = bool(plan.sites) and warmup_s is None and arrivals is None and rate_scale == 1.0
    if duration_s is None:
        duration_s = _duration_s(request_streams(plan), rate_scale)
    if warmup_s is None:
        warmup_s = WARMUP_SHARE * duration_s
    settings = SimulationSettings(duration_s, seed, warmup_s, rate_scale, arrivals, drain_s)
    times = _stationary_arrivals(plan, settings.window.end_s) if stationary else None
    return simulate(plan, brains, settings, times=times)


def _stationary_arrivals(plan: Plan, end_s: float) -> MakeTimes | None:
    """Generator of arrival times up to `end_s`; at time 0 the requests of each site's stationary queue arrive.

    The queue lengths are in closed form. None if a queue is unstable.
    """
    wait_s = {name: wait for name, wait in mean_waits_s(plan).items() if plan.worker_by_name[name].tier in plan.sites}
    if not all(map(math.isfinite, wait_s.values())):
        return None
    waiting: dict[str, float] = {}
    for stream in request_streams(plan):
        for route in plan.routes:
            visited = {route.workers[name] for name in stream.operators}
            mean = route.weight * stream.rate_per_s / stream.sites * sum(wait_s.get(worker, 0.0) for worker in visited)
            waiting[stream.sources[0].name] = waiting.get(stream.sources[0].name, 0.0) + mean

    def times(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        mean = min(waiting[stream.sources[0].name], SITE_REQUESTS)
        if mean > 0:  # number of waiting requests: geometric distribution, as in an M/M/1 queue
            yield from itertools.repeat(0.0, int(math.log(1.0 - rng.random()) / math.log(mean / (1.0 + mean))))
        yield from arrival_times([(end_s, stream.rate_per_s)], stream.arrivals, rng, phase)

    return times


def unloaded_latency_s(plan: Plan, *, seed: int = 0, requests: int = 200, workflow: str = "") -> float:
    """Mean latency in seconds with zero queueing delay: service, links and hops. `workflow`: only this workflow's."""
    result = _unloaded(plan, seed, requests)
    return result.workflows[workflow].latency_mean_s if workflow else result.latency_mean_s


def slow_latency_s(plan: Plan, *, seed: int = 0, requests: int = 200) -> float:
    """p99 latency in seconds with zero queueing delay, over all routes of the plan."""
    return _unloaded(plan, seed, requests).latency_p99_s


def _unloaded(plan: Plan, seed: int, requests: int) -> SimulationResult:
    streams = request_streams(plan)
    slowest = min(stream.rate_per_s for stream in streams)
    alone_s = {op.name: max(times[1].mean_s for times in op.service.values()) for op in plan.operators}
    work_s = sum(op.rate_per_s / slowest * alone_s[op.name] for op in plan.operators)
    sent_s = sum(link.latency_s for link in plan.links) + sum(
        (link.use or 0.0) * link.sites / slowest for link in link_uses(plan)
    )
    hops_s = plan.hop_s * (len(plan.operators) + 2)
    apart_s = (SPACING if max(stream.sites for stream in streams) == 1 else SPACING**2) * max(
        1e-6, work_s + sent_s + hops_s
    )
    fastest = max(stream.rate_per_s for stream in streams)
    scale = 1.0 / (apart_s * fastest)
    duration_s = requests / (scale * slowest)
    return simulate_plan(
        plan, seed=seed, duration_s=duration_s, warmup_s=0.0, rate_scale=scale, arrivals=Arrivals.PERIODIC
    )


def highest_sustained_rate(
    plan: Plan, *, seed: int = 0, window_s: float = DEFAULT_WINDOW_S, seeds: int = SEEDS
) -> float:
    """Highest sustained rate, in requests per second of the first source over all its sites.

    All sources are scaled by the same factor. The result is the median over `seeds` seeds, because one window has too
    few requests for a precision of a few per cent. With many sites one seed is enough.
    """
    seeds = 1 if _many_sites(plan) else seeds
    return median(_highest_sustained_rate(plan, seed + index, window_s) for index in range(seeds))


def _highest_sustained_rate(plan: Plan, seed: int, window_s: float) -> float:
    """Highest sustained rate with one seed; 0.0 if no rate is sustained.

    Bisects around the analytic capacity with simulations of `window_s` of evenly spaced requests; sustained is defined
    in `jellybean_solver.simulation.sustained`. Windows are limited to 20,000 requests.
    """
    first = plan.sources[0].rate_per_s * plan.sites.get(plan.sources[0].tier, 1)
    grace = grace_s(slow_latency_s(plan, seed=seed), first, window_s, Arrivals.PERIODIC)
    scale = capacity_scale(plan)
    all_per_s = scale * sum(stream.rate_per_s for stream in request_streams(plan))
    window_s = min(window_s, max(PROBE_REQUESTS / all_per_s, 10.0 * grace))

    def probe(rate: float) -> bool:
        result = simulate_plan(
            plan,
            seed=seed,
            duration_s=window_s,
            warmup_s=0.0,
            rate_scale=rate / first,
            arrivals=Arrivals.PERIODIC,
            drain_s=grace,
        )
        return is_sustained(result.offered, result.completed, failed=0)

    capacity = first * scale
    return highest_sustained(probe, 0.95 * capacity, 1.05 * capacity)


def capacity_scale(plan: Plan) -> float:
    """Factor on all rates at which the busiest worker or link reaches utilisation 1."""
    loads = [*load_by_worker(plan).values(), *_load_by_link(plan).values()]
    return 1.0 / max(*loads, 1e-9)


def load_by_worker(plan: Plan) -> Mapping[str, float]:
    """Utilisation of each worker at the plan's rates, from routes and mean service times."""
    loads = {worker.name: 0.0 for worker in plan.workers}
    for route in plan.routes:
        for operator in plan.operators:
            worker = plan.worker_by_name[route.workers[operator.name]]
            busy = route.weight * operator.rate_per_s * operator.mean_request_s(worker.pool)
            loads[worker.name] += busy / plan.sites.get(worker.tier, 1)
    return loads


@dataclass(frozen=True, slots=True)
class Judged:
    """Simulated p99 latencies compared with their targets. `text` describes a missed target, empty if all are met.

    `p99_s` and `targets_s` are keyed by workflow, for those with a target; a single workflow has the empty name.
    """

    text: str
    p99_s: Mapping[str, float]
    targets_s: Mapping[str, float]

    @property
    def kept(self) -> bool:
        return not self.text

    @property
    def share(self) -> float:
        """The largest p99 latency as a multiple of its target."""
        return max(self.p99_s[name] / target_s for name, target_s in self.targets_s.items())


def latency_targets(plan: Plan) -> Mapping[str, float]:
    """Workflow -> p99 latency target in seconds; a single workflow has the empty name."""
    targets = {w.name: w.slo.latency_p99_s for w in plan.workflows} or {"": plan.slo.latency_p99_s}
    return {name: target_s for name, target_s in targets.items() if target_s is not None}


def check_latency(plan: Plan) -> str | None:
    """Describe the missed p99 latency target with the largest excess; None if all targets are met."""
    breach = latency_breach(plan)
    return None if breach is None else breach.text


def latency_breach(plan: Plan, *, seeds: int = SEEDS) -> Judged | None:
    """The simulated p99 latencies if the plan misses a target; None if it meets all targets or has no target."""
    found = judged_latency(plan, seeds=seeds)
    return None if found is None or found.kept else found


def judged_latency(plan: Plan, *, seeds: int = SEEDS, quick: bool = False) -> Judged | None:
    """Simulate the plan's p99 latencies and compare them with their targets; None if it has no target.

    The median over `seeds` simulations decides. The rest is skipped once a majority meets the targets, or if the first
    p99 differs from its target by more than the factor `FAR`. With many sites one simulation is enough.
    `quick`: also stop once a majority misses a target, or if the first p99 exceeds it by the factor `QUICK_FAR`.
    """
    targets_s = latency_targets(plan)
    if not targets_s:
        return None
    seeds = 1 if _many_sites(plan) else seeds
    samples: dict[str, list[float]] = {name: [] for name in targets_s}
    for seed in range(seeds):
        for name, p99_s in simulated_p99_s(plan, seed=seed).items():
            if name in samples:
                samples[name].append(p99_s)
        if all(_is_met(samples[name], target_s, seeds) for name, target_s in targets_s.items()):
            return Judged("", {name: _median_upper_bound(p99_s, seeds) for name, p99_s in samples.items()}, targets_s)
        if any(_is_missed(samples[name], target_s, seeds, quick=quick) for name, target_s in targets_s.items()):
            break
    medians = {name: median(p99s) for name, p99s in samples.items()}
    worst = max(targets_s, key=lambda name: medians[name] / targets_s[name])
    return Judged(_breach_text(plan, worst, sorted(samples[worst]), targets_s[worst]), medians, targets_s)


def _median_upper_bound(p99_s: Sequence[float], seeds: int) -> float:
    """Upper bound in seconds of the median p99 over all `seeds` simulations, given those that were run.

    A single sample is returned unchanged.
    """
    return sorted(p99_s)[min(len(p99_s) - 1, seeds // 2)]


def _is_met(p99_s: Sequence[float], target_s: float, seeds: int) -> bool:
    """True if the remaining seeds cannot lift the median above the target, or the first sample is far below it."""
    return sum(sample <= target_s for sample in p99_s) > seeds // 2 or p99_s[0] * FAR <= target_s


def _is_missed(p99_s: Sequence[float], target_s: float, seeds: int, *, quick: bool) -> bool:
    """True if the first sample is far above the target. `quick`: also if the median is certain to exceed the target."""
    if not quick:
        return p99_s[0] >= FAR * target_s
    return p99_s[0] >= QUICK_FAR * target_s or sum(sample > target_s for sample in p99_s) > seeds // 2


def _breach_text(plan: Plan, workflow: str, p99_s: Sequence[float], target_s: float) -> str:
    streams = request_streams(plan)
    requests = _duration_s(streams, least_s=0.0) * min(s.rate_per_s for s in streams if s.workflow == workflow)
    loads = load_by_worker(plan)
    busiest = max(loads, key=loads.__getitem__)
    prefix = f"{workflow}: " if workflow else ""
    return (
        f"{prefix}p99 latency would be {_ms(median(p99_s))}, above the SLO of {_ms(target_s)} "
        f"({_simulations(p99_s)} of about {requests:,.0f} requests; "
        f"mean latency with zero queueing delay {_ms(unloaded_latency_s(plan, workflow=workflow))}; "
        f"busiest worker {busiest} at utilisation {loads[busiest]:.2f})"
    )


def _simulations(p99_s: Sequence[float]) -> str:
    if len(p99_s) == 1:
        return "one simulation"
    return f"{len(p99_s)} simulations, {_ms(p99_s[0])} to {_ms(p99_s[-1])},"


def simulated_p99_s(plan: Plan, *, seed: int = 0) -> Mapping[str, float]:
    """Workflow -> p99 latency of one simulation; a single workflow has the empty name.

    `check_latency` uses the median over the first `SEEDS` seeds.
    """
    duration_s = _duration_s(request_streams(plan), least_s=0.0)
    result = simulate_plan(plan, seed=seed, duration_s=duration_s)
    return {name: own.latency_p99_s for name, own in result.workflows.items()} or {"": result.latency_p99_s}


def brains(plan: Plan, *, fair_queueing_from: int = FAIR_QUEUEING_FROM) -> Mapping[str, Brain]:
    """Worker -> scheduler state machine (`Brain`), for every worker of the plan in every site.

    `fair_queueing_from`: queue length from which operators are served by fair queueing, weighted by planned load.
    """
    edges = [edge for operator in plan.operators for edge in operator.inputs]
    wiring = {operator.name: _wiring(operator.inputs, operator.name, edges) for operator in plan.operators}
    tiers = {worker.name: worker.tier for worker in plan.workers}
    routes = SiteRoutes([route.workers for route in plan.routes], tiers, Sites(plan.sites))
    return {
        name: Brain(
            name,
            wiring,
            routes,
            BatchPolicy(
                batch_sizes=_batches(plan, worker.pool),
                delays=_delays(plan, worker.pool),
                shares=_loads(plan, worker),
                fair_queueing_from=fair_queueing_from,
            ),
        )
        for worker in plan.workers
        for site in range(plan.sites.get(worker.tier, 1))
        for name in [worker_at(plan.sites, worker.tier, worker.name, site)]
    }


def _batches(plan: Plan, pool: str) -> Mapping[str, int]:
    return {operator.name: operator.batch[pool] for operator in plan.operators if pool in operator.batch}


def _loads(plan: Plan, worker: PlannedWorker) -> Mapping[str, float]:
    """Operator -> its planned utilisation of the worker, computed as agents do."""
    operators = plan.operator_by_name
    return {name: rate * operators[name].mean_request_s(worker.pool) for name, rate in worker.rates_per_s.items()}


def _delays(plan: Plan, pool: str) -> Mapping[str, float]:
    batched = [operator for operator in plan.operators if operator.batch.get(pool, 1) > 1]
    return {operator.name: operator.batch_delay_s for operator in batched if operator.batch_delay_s}


def _wiring(inputs: tuple[Edge, ...], name: str, edges: list[Edge]) -> OperatorWiring:
    return OperatorWiring(
        inputs=tuple((edge.upstream, edge.kind.value) for edge in inputs),
        outputs=tuple((edge.downstream, edge.kind.value) for edge in edges if edge.upstream == name),
    )


def _duration_s(streams: tuple[RequestStream, ...], rate_scale: float = 1.0, least_s: float = 60.0) -> float:
    rates = [stream.rate_per_s * rate_scale for stream in streams]
    needed = (max(REQUESTS, SITE_REQUESTS * stream.sites) / rate for stream, rate in zip(streams, rates, strict=True))
    return min(max(least_s, *needed), max(MAX_REQUESTS / sum(rates), 1.0))


def _many_sites(plan: Plan) -> bool:
    return max(stream.sites for stream in request_streams(plan)) >= MANY_SITES


def _load_by_link(plan: Plan) -> Mapping[tuple[str, str], float]:
    """Utilisation of each link of one site at the plan's rates; 0 for unlimited bandwidth."""
    return {(link.upstream_tier, link.downstream_tier): link.use or 0.0 for link in link_uses(plan)}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
