"""Plans in virtual time: the simulator with the agents' own brain plugged in."""

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

REQUESTS = 2_000  # of the slowest stream, so that p99 stands on 20 requests or more
SITE_REQUESTS = 10  # of each site, where there are many
MANY_SITES = 100
MOST_REQUESTS = 50_000  # of all streams together
PROBE_REQUESTS = 20_000  # of all streams together, in one window of the search for the highest sustained rate
WARMUP_SHARE = 0.1
APART = 100.0  # times what one request takes: so far apart requests meet nobody; sites do not know of each other
SEEDS = 5
FAR = 2.0  # p99 latencies of one plan under several seeds are closer together


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
    """Latency, throughput and queues of a plan at its own rates x `rate_scale`.

    By default the window is 60 s or long enough for 2,000 requests (50,000 at most), after a tenth of it as warm-up.
    Many sites see few requests each in that time, so they then begin with queues as long as they are in the long run.
    """
    at_work = bool(plan.sites) and warmup_s is None and arrivals is None and rate_scale == 1.0
    if duration_s is None:
        duration_s = _duration_s(request_streams(plan), rate_scale)
    if warmup_s is None:
        warmup_s = WARMUP_SHARE * duration_s
    settings = SimulationSettings(duration_s, seed, warmup_s, rate_scale, arrivals, drain_s)
    return simulate(plan, brains, settings, times=_at_work(plan, settings.window.end_s) if at_work else None)


def _at_work(plan: Plan, end_s: float) -> MakeTimes | None:
    """Arrivals that begin with what waits in a site in the long run, by the closed form; None where that is endless."""
    wait_s = {name: wait for name, wait in mean_waits_s(plan).items() if plan.worker_by_name[name].tier in plan.sites}
    if not all(map(math.isfinite, wait_s.values())):
        return None
    waiting: dict[str, float] = {}
    for stream in request_streams(plan):
        for route in plan.routes:
            met = {route.workers[name] for name in stream.operators}
            mean = route.weight * stream.rate_per_s / stream.sites * sum(wait_s.get(worker, 0.0) for worker in met)
            waiting[stream.sources[0].name] = waiting.get(stream.sources[0].name, 0.0) + mean

    def times(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        mean = min(waiting[stream.sources[0].name], SITE_REQUESTS)
        if mean > 0:  # geometric, as in a queue of random arrivals
            yield from itertools.repeat(0.0, int(math.log(1.0 - rng.random()) / math.log(mean / (1.0 + mean))))
        yield from arrival_times(stream.rate_per_s, stream.arrivals, end_s, rng, phase)

    return times


def unloaded_latency_s(plan: Plan, *, seed: int = 0, requests: int = 200, workflow: str = "") -> float:
    """Mean latency of requests that meet nobody: service, links and hops only. `workflow`: one of several."""
    result = _unloaded(plan, seed, requests)
    return result.workflows[workflow].latency_mean_s if workflow else result.latency_mean_s


def slow_latency_s(plan: Plan, *, seed: int = 0, requests: int = 200) -> float:
    """What 99 of 100 requests take that meet nobody, on the plan's slowest routes too."""
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
    apart_s = (APART if max(stream.sites for stream in streams) == 1 else APART**2) * max(
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
    """Requests per second of the first source, in all its sites, up to which the plan keeps up; all sources grow.

    The median over `seeds` seeds: one window holds few enough requests that chance decides by some per cent. Not where
    there are many sites, each with chances of its own.
    """
    seeds = 1 if _many_sites(plan) else seeds
    return median(_highest_sustained_rate(plan, seed + index, window_s) for index in range(seeds))


def _highest_sustained_rate(plan: Plan, seed: int, window_s: float) -> float:
    """What one seed says.

    Bisects around the analytic capacity with simulations of `window_s` of evenly spaced requests, by the definition of
    `jellybean_solver.simulation.sustained`. 0.0 when nothing is sustained. Windows of more than 20,000 requests are cut
    short.
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
    """The factor on all rates at which the busiest worker or link would be busy all the time."""
    loads = [*load_by_worker(plan).values(), *_load_by_link(plan).values()]
    return 1.0 / max(*loads, 1e-9)


def load_by_worker(plan: Plan) -> Mapping[str, float]:
    """Busy share of each worker at the plan's rates, by its routes and mean service times."""
    loads = {worker.name: 0.0 for worker in plan.workers}
    for route in plan.routes:
        for operator in plan.operators:
            worker = plan.worker_by_name[route.workers[operator.name]]
            busy = route.weight * operator.rate_per_s * operator.mean_request_s(worker.pool)
            loads[worker.name] += busy / plan.sites.get(worker.tier, 1)
    return loads


@dataclass(frozen=True, slots=True)
class Judged:
    """Simulated p99 latencies as they were held against their SLOs; `text`: where one is above, a sentence of figures.

    `p99_s` and `targets_s` by workflow, of those with an SLO; of one workflow alone under no name.
    """

    text: str
    p99_s: Mapping[str, float]
    targets_s: Mapping[str, float]

    @property
    def kept(self) -> bool:
        return not self.text

    @property
    def share(self) -> float:
        """The largest p99 latency, as a multiple of its SLO."""
        return max(self.p99_s[name] / target_s for name, target_s in self.targets_s.items())


def latency_targets(plan: Plan) -> Mapping[str, float]:
    """The p99 latencies that a plan is asked to keep: by workflow, of one workflow alone under no name."""
    asked = {w.name: w.slo.latency_p99_s for w in plan.workflows} or {"": plan.slo.latency_p99_s}
    return {name: target_s for name, target_s in asked.items() if target_s is not None}


def check_latency(plan: Plan) -> str | None:
    """Why the plan breaks a p99 latency SLO, with the figures; None when it keeps all or has none."""
    breach = latency_breach(plan)
    return None if breach is None else breach.text


def latency_breach(plan: Plan, *, seeds: int = SEEDS) -> Judged | None:
    """How far the plan is above its p99 latency SLOs; None when it keeps all or has none."""
    found = judged_latency(plan, seeds=seeds)
    return None if found is None or found.kept else found


def judged_latency(plan: Plan, *, seeds: int = SEEDS) -> Judged | None:
    """The plan's p99 latencies beside its SLOs; None when it has none.

    The median over several seeds decides, so that one unlucky run does not; runs that cannot change it are left out,
    and so are all after a first one that is off an SLO by a factor of `FAR`, or of many sites: each has its own luck.
    """
    targets_s = latency_targets(plan)
    if not targets_s:
        return None
    seeds = 1 if _many_sites(plan) else seeds
    found: dict[str, list[float]] = {name: [] for name in targets_s}
    for seed in range(seeds):
        for name, p99_s in simulated_p99_s(plan, seed=seed).items():
            if name in found:
                found[name].append(p99_s)
        if all(_is_kept(found[name], target_s, seeds) for name, target_s in targets_s.items()):
            return Judged("", {name: _at_most(p99_s, seeds) for name, p99_s in found.items()}, targets_s)
        if any(found[name][0] >= FAR * target_s for name, target_s in targets_s.items()):
            break
    medians = {name: median(p99s) for name, p99s in found.items()}
    worst = max(targets_s, key=lambda name: medians[name] / targets_s[name])
    return Judged(_breach_text(plan, worst, sorted(found[worst]), targets_s[worst]), medians, targets_s)


def _at_most(p99_s: Sequence[float], seeds: int) -> float:
    """What the median over all seeds is at most, those left out included; one alone as it is."""
    return sorted(p99_s)[min(len(p99_s) - 1, seeds // 2)]


def _is_kept(p99_s: Sequence[float], target_s: float, seeds: int) -> bool:
    """Whether no further seed can change that the median is within the SLO, or need be asked."""
    return sum(one <= target_s for one in p99_s) > seeds // 2 or p99_s[0] * FAR <= target_s


def _breach_text(plan: Plan, workflow: str, p99_s: Sequence[float], target_s: float) -> str:
    streams = request_streams(plan)
    requests = _duration_s(streams, least_s=0.0) * min(s.rate_per_s for s in streams if s.workflow == workflow)
    loads = load_by_worker(plan)
    busiest = max(loads, key=loads.__getitem__)
    of = f"{workflow}: " if workflow else ""
    return (
        f"{of}p99 latency would be {_ms(median(p99_s))}, above the SLO of {_ms(target_s)} "
        f"({_simulated(p99_s)} of about {requests:,.0f} requests; "
        f"without queues a request takes {_ms(unloaded_latency_s(plan, workflow=workflow))}; "
        f"the busiest worker is {busiest}, load {loads[busiest]:.2f})"
    )


def _simulated(p99_s: Sequence[float]) -> str:
    if len(p99_s) == 1:
        return "a simulation"
    return f"{len(p99_s)} simulations, {_ms(p99_s[0])} to {_ms(p99_s[-1])},"


def simulated_p99_s(plan: Plan, *, seed: int = 0) -> Mapping[str, float]:
    """The p99 latencies of one simulation by workflow, of one alone under no name.

    The median over the first `SEEDS` is what `check_latency` decides by.
    """
    duration_s = _duration_s(request_streams(plan), least_s=0.0)
    result = simulate_plan(plan, seed=seed, duration_s=duration_s)
    return {name: own.latency_p99_s for name, own in result.workflows.items()} or {"": result.latency_p99_s}


def brains(plan: Plan, *, fair_queueing_from: int = FAIR_QUEUEING_FROM) -> Mapping[str, Brain]:
    """The state machine of each worker of the plan, in every site.

    `fair_queueing_from`: number of queued items from which operators take turns by their planned load.
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
    """As an agent reads them from the plan."""
    found = plan.operator_by_name
    return {name: rate * found[name].mean_request_s(worker.pool) for name, rate in worker.rates_per_s.items()}


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
    wanted = (max(REQUESTS, SITE_REQUESTS * stream.sites) / rate for stream, rate in zip(streams, rates, strict=True))
    return min(max(least_s, *wanted), max(MOST_REQUESTS / sum(rates), 1.0))


def _many_sites(plan: Plan) -> bool:
    return max(stream.sites for stream in request_streams(plan)) >= MANY_SITES


def _load_by_link(plan: Plan) -> Mapping[tuple[str, str], float]:
    """Busy share of each link of one site at the plan's rates; an unlimited one is never busy."""
    return {(link.upstream_tier, link.downstream_tier): link.use or 0.0 for link in link_uses(plan)}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
