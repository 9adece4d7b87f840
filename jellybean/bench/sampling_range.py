"""How far figures of few requests vary by chance: what simulations of the plan give for the very same arrivals.

A minute at one request per second has 60 requests, give or take eight. When these come together by chance, or are few,
even a perfect prediction of the plan's throughput, p50 or p99 in the long run is far from what the minute shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from jellybean.bench.window import Progress
from jellybean.planning.simulation import brains, sustained_rate
from jellybean_solver import (
    OutOfTimeError,
    Plan,
    PlannedOperator,
    RequestStream,
    SimulationSettings,
    arrival_times,
    request_streams,
    simulate,
)

SIMULATIONS = 20  # of which the lowest and the highest figure count: about nine in ten further ones lie between
SEARCHES = 10  # the same of a search for the highest rate, each of several simulations
MOST_SEARCHED = 300  # requests of a window of such a search
MOST_REQUESTS = 1_000  # in a measurement; with more, chance is small beside the tolerances, and simulations take long
FIGURES = ("throughput_per_s", "latency_p50_s", "latency_p90_s", "latency_p99_s")


def sampling_ranges(
    plan: Plan,
    due_s: Sequence[float],
    warmup_s: float,
    duration_s: float,
    progress: Progress = lambda done, total, label: None,
    workflow: str = "",
) -> Mapping[str, tuple[float, float]]:
    """Figure -> its least and greatest value in simulations with requests due at `due_s` seconds.

    `workflow`: the one that was measured of a plan of several; the others' requests arrive at their planned rates.
    Service times and children differ between the simulations. Empty where the arrivals of a measurement are not those
    of the plan's one stream of requests, or of that workflow: with sites, or streams with a state; or where the time
    limit of the work ends the simulations.
    """
    if not _is_one_stream(plan, workflow) or not 0 < len(due_s) <= MOST_REQUESTS:
        return {}

    def times(stream: RequestStream, rng: Random, phase: float) -> Iterator[float]:
        if stream.workflow == workflow:
            return iter(due_s)
        return arrival_times([(warmup_s + duration_s, stream.rate_per_s)], stream.arrivals, rng, phase)

    results = [
        simulate(plan, brains, SimulationSettings(duration_s, seed, warmup_s), times=times)
        for seed in range(SIMULATIONS)
    ]
    if not all(result.complete for result in results):
        return {}
    own = [result.workflows[workflow] if workflow else result for result in results]
    figures = {key: [getattr(result, key) for result in own] for key in FIGURES}
    return {key: (min(values), max(values)) for key, values in figures.items()}


def highest_rate_range(plan: Plan, window_s: float, highest_per_s: float) -> Mapping[str, tuple[float, float]]:
    """The least and the greatest highest sustained rate in simulations of a search with such windows.

    Whether a window of sixty requests is sustained depends on which of them take long. Empty where a window of requests
    at `highest_per_s` has many, and as for `sampling_ranges`.
    """
    if not _is_one_stream(plan) or not 0 < window_s * highest_per_s <= MOST_SEARCHED:
        return {}
    try:
        rates = [sustained_rate(plan, seed, window_s) for seed in range(SEARCHES)]
    except OutOfTimeError:
        return {}
    return {"highest_rate_per_s": (min(rates), max(rates))}


def as_emulated(plan: Plan) -> Plan:
    """The plan as this machine runs it: on an emulated device each run takes the mean of its times, not one of them."""
    emulated = {worker.pool for worker in plan.workers if worker.speed != 1.0}

    def constant(operator: PlannedOperator) -> PlannedOperator:
        service = {
            pool: {size: replace(time, quantiles=()) for size, time in times.items()} if pool in emulated else times
            for pool, times in operator.service.items()
        }
        return replace(operator, service=service, others=tuple(map(constant, operator.others)))

    return replace(plan, operators=tuple(map(constant, plan.operators)))


def _is_one_stream(plan: Plan, workflow: str = "") -> bool:
    """True if a measurement's arrivals are those of the one stream of requests of the plan, or of a workflow of it."""
    has_state = any(operator.state for operator in plan.operators)
    streams = [stream for stream in request_streams(plan) if stream.workflow == workflow]
    return len(streams) == 1 and not plan.sites and not has_state
