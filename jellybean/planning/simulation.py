"""Simulate plans in virtual time, with the agents' own scheduling code (`Brain`)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from statistics import median

from jellybean_agent import FAIR_QUEUEING_FROM, BatchPolicy, Brain, OperatorWiring, RouteTable, SiteRoutes, Sites
from jellybean_solver import (
    Arrivals,
    MakeTimes,
    Observer,
    OutOfTimeError,
    Plan,
    PlannedWorker,
    RequestStream,
    SimulationResult,
    SimulationSettings,
    arrival_times,
    default_window_s,
    grace_s,
    groups_by_worker,
    highest_sustained,
    is_sustained,
    link_uses,
    mean_waits_s,
    request_streams,
    selection_shares,
    served_streams,
    simulate,
    unqueued_and_hops_s,
    visits_per_request,
    worker_at,
)

REQUESTS = 2_000  # simulated requests of the slowest stream: at least 20 of them are slower than p99
SITE_REQUESTS = 10  # minimum number of simulated requests per site
MANY_SITES = 100  # from this number of sites on, one seed is enough
MAX_REQUESTS = 50_000  # simulated requests of all streams together
# Runs of operators that one request brings, from which on fewer requests are simulated: a run takes some 20 us, so that
# a simulation takes seconds whatever the fan-outs are. Requests with many children differ little from each other.
MAX_RUNS_PER_REQUEST = 15.0
LEAST_REQUESTS = 100  # of the slowest stream, whatever runs they bring: one of them is slower than p99
PROBE_REQUESTS = 20_000  # requests of all streams in one probe of the search for the highest sustained rate
# Requests of all streams per second above which no rate is sought: tens of times what the gateway's and an agent's
# process carry (docs/benchmarks.md: serving_overhead), so that only the serving, not the plan, limits what is served.
MOST_PER_S = 20_000.0
SAME_RATE = 1e-9  # relative: rates that differ by less are equal
WARMUP_SHARE = 0.1  # warm-up, as a share of the measured window
SPACING = (
    1e4  # spacing of requests without queueing, as a multiple of the time of one request, whose children run at once
)
UNLOADED_LEAST = 20  # requests without queueing of a simulation, whatever runs they bring
SEEDS = 5  # simulations of one plan with different seeds; of their figures the median counts


def simulate_plan(
    plan: Plan,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    warmup_s: float | None = None,
    rate_scale: float = 1.0,
    arrivals: Arrivals | None = None,
    drain_s: float | None = None,
    observer: Observer | None = None,
) -> SimulationResult:
    """Simulate latency, throughput and queues of a plan at its rates times `rate_scale`.

    The measured window has by default 2,000 to 50,000 requests, after a warm-up of a tenth of the window. With several
    sites, queues start at their stationary length, because each site gets few requests.
    """
    stationary = bool(plan.sites) and warmup_s is None and arrivals is None and rate_scale == 1.0
    if duration_s is None:
        duration_s = window_s(plan, rate_scale)
    if warmup_s is None:
        warmup_s = WARMUP_SHARE * duration_s
    settings = SimulationSettings(duration_s, seed, warmup_s, rate_scale, arrivals, drain_s)
    times = _stationary_arrivals(plan, settings.window.end_s) if stationary else None
    return simulate(plan, brains, settings, times=times, observer=observer)


def _stationary_arrivals(plan: Plan, end_s: float) -> MakeTimes | None:
    """Generator of arrival times up to `end_s`; at time 0 the requests of each site's stationary queue arrive.

    The queue lengths are in closed form. None if a queue is unstable.
    """
    wait_s = {name: wait for name, wait in mean_waits_s(plan).items() if plan.worker_by_name[name].tier in plan.sites}
    if not all(map(math.isfinite, wait_s.values())):
        return None
    waiting: dict[str, float] = {}  # source of a stream -> requests that wait in each site
    for stream in request_streams(plan):
        routes = [route for route in plan.routes if stream.operators[0] in route.workers]
        weighted_s = (
            route.weight * sum(wait_s.get(worker, 0.0) for worker in {route.workers[name] for name in stream.operators})
            for route in routes
        )
        waiting[stream.sources[0].name] = stream.rate_per_s / stream.sites * sum(weighted_s)

    def times(stream: RequestStream, rng: random.Random, phase: float) -> Iterator[float]:
        mean = min(waiting[stream.sources[0].name], SITE_REQUESTS)
        if mean > 0:  # number of waiting requests: geometric distribution, as in an M/M/1 queue
            yield from itertools.repeat(0.0, int(math.log(1.0 - rng.random()) / math.log(mean / (1.0 + mean))))
        yield from arrival_times([(end_s, stream.rate_per_s)], stream.arrivals, rng, phase)

    return times


def unloaded_latency_s(plan: Plan, *, requests: int = 200, workflow: str = "") -> float:
    """Mean latency in seconds with zero queueing delay: service, links and hops. `workflow`: only this workflow's."""
    result = _unloaded(plan, 0, requests)
    return result.workflows[workflow].latency_mean_s if workflow else result.latency_mean_s


def slow_latency_s(plan: Plan, *, seed: int = 0, requests: int = 200) -> float:
    """p99 latency in seconds with zero queueing delay, over all routes of the plan."""
    return _unloaded(plan, seed, requests).latency_p99_s


def _unloaded(plan: Plan, seed: int, requests: int) -> SimulationResult:
    requests = max(UNLOADED_LEAST, round(_requests_share(plan) * requests))
    rates = [stream.rate_per_s for stream in served_streams(plan)]
    scale = 1.0 / (SPACING * max(1e-6, unqueued_and_hops_s(plan)[0]) * max(rates))
    duration_s = requests / (scale * min(rates))
    return simulate_plan(
        plan, seed=seed, duration_s=duration_s, warmup_s=0.0, rate_scale=scale, arrivals=Arrivals.PERIODIC
    )


def highest_sustained_rate(
    plan: Plan,
    *,
    seed: int = 0,
    window_s: float | None = None,
    seeds: int = SEEDS,
    progress: Callable[[float], None] = lambda share: None,
) -> float | None:
    """Highest sustained rate, in requests per second of the first source over all its sites.

    All sources are scaled by the same factor. The result is the median over `seeds` seeds, because one window has too
    few requests for a precision of a few per cent. With many sites one seed is enough. At the time limit of the work
    it is the median over those that are done; None if there is none. `progress`: gets the share of the seeds that are
    done.
    """
    rates: list[float] = []
    wanted = seeds_of(plan, seed, seeds)
    with suppress(OutOfTimeError):
        for done, index in enumerate(wanted):
            progress(done / len(wanted))
            rates.append(sustained_rate(plan, index, window_s))
    return median(rates) if rates else None


def sustained_rate(plan: Plan, seed: int, window_s: float | None) -> float:
    """Highest sustained rate with one seed; 0.0 if no rate is sustained. OutOfTimeError at the limit of the work.

    Bisects around the analytic capacity with simulations of `window_s` of evenly spaced requests; sustained is defined
    in `jellybean_solver.simulation.sustained`. Windows are limited to 20,000 requests, fewer of those that bring many
    runs. Where the capacity is above `MOST_PER_S`, that rate is the answer.
    """
    first = first_rate_per_s(plan)
    scale, most = capacity_scale(plan), most_scale(plan)
    if scale > most:
        return first * most
    slow_s, capacity = slow_latency_s(plan, seed=seed), first * scale
    window_s = default_window_s(capacity, slow_s) if window_s is None else window_s
    grace = grace_s(slow_s, first, window_s, Arrivals.PERIODIC)
    all_per_s = scale * sum(stream.rate_per_s for stream in served_streams(plan))
    most_requests = PROBE_REQUESTS * _requests_share(plan)
    window_s = min(window_s, max(most_requests / all_per_s, min(10.0 * grace, PROBE_REQUESTS / all_per_s)))

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
        if not result.complete:
            raise OutOfTimeError("time ended before the highest sustained rate was found")
        return is_sustained(result.offered, result.completed, failed=0)

    return highest_sustained(probe, 0.95 * capacity, 1.05 * capacity)


def first_rate_per_s(plan: Plan) -> float:
    """Requests per second of the first source over all its sites, as rates are stated."""
    return plan.sources[0].rate_per_s * plan.sites.get(plan.sources[0].tier, 1)


def most_scale(plan: Plan) -> float:
    """Factor on all rates at which the streams together have `MOST_PER_S`; at least 1."""
    return max(1.0, MOST_PER_S / sum(stream.rate_per_s for stream in served_streams(plan)))


def is_search_limit(plan: Plan, rate_per_s: float) -> bool:
    """True if a highest sustained rate is that at which its search ends, so that the plan may sustain more."""
    return rate_per_s >= first_rate_per_s(plan) * most_scale(plan) * (1.0 - SAME_RATE)


def capacity_scale(plan: Plan) -> float:
    """Factor on all rates at which the busiest worker or link reaches utilisation 1."""
    loads = [*load_by_worker(plan).values(), *load_by_link(plan).values()]
    return 1.0 / max(*loads, 1e-9)


def load_by_worker(plan: Plan) -> Mapping[str, float]:
    """Utilisation of each worker at the plan's rates, from routes and mean service times."""
    loads = {worker.name: 0.0 for worker in plan.workers}
    for part in selection_shares(plan):
        for route in part.routes:
            for name, at in route.workers.items():
                worker = plan.worker_by_name[at]
                request_s = plan.operator_at(name, at).mean_request_s(worker.pool)
                busy = route.weight * part.rates_per_s[name] * request_s
                loads[worker.name] += busy / plan.sites.get(worker.tier, 1)
    return loads


def brains(plan: Plan, *, fair_queueing_from: int = FAIR_QUEUEING_FROM) -> Mapping[str, Brain]:
    """Worker -> scheduler state machine (`Brain`), for every worker of the plan in every site.

    `fair_queueing_from`: queue length from which operators are served by fair queueing, weighted by planned load.
    """
    edges = [edge for operator in plan.operators for edge in operator.inputs]
    wiring = {
        operator.name: OperatorWiring(
            inputs=tuple((edge.upstream, edge.kind.value) for edge in operator.inputs),
            outputs=tuple((edge.downstream, edge.kind.value) for edge in edges if edge.upstream == operator.name),
        )
        for operator in plan.operators
    }
    tiers = {worker.name: worker.tier for worker in plan.workers}
    routes = SiteRoutes([route.workers for route in plan.routes], tiers, Sites(plan.sites))
    table = RouteTable(routes, groups_by_worker(plan))
    return {
        name: Brain(name, wiring, table, _policy(plan, worker, fair_queueing_from))
        for worker in plan.workers
        for site in range(plan.sites.get(worker.tier, 1))
        for name in [worker_at(plan.sites, worker.tier, worker.name, site)]
    }


def _policy(plan: Plan, worker: PlannedWorker, fair_queueing_from: int) -> BatchPolicy:
    """How a worker forms batches; the shares are planned utilisations, computed as agents do."""
    here = {name: plan.operator_at(name, worker.name) for name in plan.operator_by_name}
    sizes = {name: one.batch[worker.pool] for name, one in here.items() if worker.pool in one.batch}
    delays = {one.name: one.batch_delay_s for one in plan.operators if one.batch_delay_s and sizes.get(one.name, 1) > 1}
    loads = {name: rate * here[name].mean_request_s(worker.pool) for name, rate in worker.rates_per_s.items()}
    workflows = {name: plan.workflow_of(name) for name in here} if plan.workflows else {}
    return BatchPolicy(sizes, delays, loads, fair_queueing_from, workflows)


def window_s(plan: Plan, rate_scale: float = 1.0) -> float:
    """Length of the simulated window in seconds: at least 2,000 requests of every stream, at most 50,000 of all.

    Fewer of those that bring more than `MAX_RUNS_PER_REQUEST` runs, but at least `LEAST_REQUESTS`.
    """
    streams, share = served_streams(plan), _requests_share(plan)
    rates = [stream.rate_per_s * rate_scale for stream in streams]
    least = max(LEAST_REQUESTS, share * REQUESTS)
    needed = (max(least, SITE_REQUESTS * stream.sites) / rate for stream, rate in zip(streams, rates, strict=True))
    most = max(LEAST_REQUESTS, share * MAX_REQUESTS)
    return min(max(needed), max(most / sum(rates), 1.0 if share == 1.0 else 0.0))


def _requests_share(plan: Plan) -> float:
    """The share of the requests that is simulated, as if each brought at most `MAX_RUNS_PER_REQUEST` runs."""
    streams = served_streams(plan)
    visits = visits_per_request(plan)
    runs = sum(stream.rate_per_s * visits[name] for stream in streams for name in stream.operators)
    return min(1.0, MAX_RUNS_PER_REQUEST * sum(stream.rate_per_s for stream in streams) / max(runs, 1e-9))


def seeds_of(plan: Plan, first: int = 0, most: int = SEEDS) -> range:
    """Seeds of a plan's simulations, from `first` on. With many sites one is enough: their queues are independent."""
    many = max(stream.sites for stream in request_streams(plan)) >= MANY_SITES
    return range(first, first + (1 if many else most))


def load_by_link(plan: Plan) -> Mapping[tuple[str, str], float]:
    """Utilisation of each link of one site at the plan's rates; 0 for unlimited bandwidth."""
    return {(link.upstream_tier, link.downstream_tier): link.use or 0.0 for link in link_uses(plan)}
