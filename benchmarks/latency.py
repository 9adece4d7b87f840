"""The solver's closed form of p99 latency beside the simulator's, over generated plans."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.fleet import Size, fleet
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.planning.simulation import brains
from jellybean_solver import (
    Arrivals,
    Plan,
    Problem,
    Sharing,
    SimulationSettings,
    simulate,
    solve,
)
from jellybean_solver.latency.estimate import latency

REQUESTS = 10_000
PLANS = 50
FURTHER = (1000, 3000, 4000, 6000)  # first seeds
SPECIAL_PLANS, SPECIAL_REQUESTS = 63, 3_000
FIRST_SPECIAL, SPECIAL_STEP = 5, 6  # seeds of fleets with batches and arrivals that are evenly spaced
SPREAD = ("lowest", "median", "highest")
METHOD = f"Cheapest plans of generated fleets of all kinds, simulated with {REQUESTS:,} requests each."
REFERENCE = "the simulator's p99. Above 1 the closed form, by which the planner searches, is conservative."


@benchmark
def latency_estimate(smoke: bool) -> Result:
    """Ratios of the closed form's p99 to the simulator's; above 1 the closed form is conservative."""
    ratios, took_s = _ratios(0, smoke)
    rows = [[kind, len(values), *_spread(values)] for kind, values in sorted(ratios.items())]
    return Result(
        title="p99 latency: closed form over simulated",
        topic=Topic.PREDICTION,
        method=f"{METHOD} {PLANS} fleets from seed 0.",
        reference=REFERENCE,
        tables=(Table.of(["plans", "number", *SPREAD], rows),),
        notes=(f"The closed form takes {1e3 * statistics.median(took_s):.1f} ms a plan (median).",),
    )


@benchmark
def latency_estimate_further(smoke: bool) -> Result:
    """The same ratios on fleets of other seeds."""
    rows = [[f"{first:,}", *_spread(_ratios(first, smoke)[0]["all"])] for first in FURTHER]
    return Result(
        title="p99 latency: closed form over simulated, further seeds",
        topic=Topic.PREDICTION,
        method=f"{METHOD} {PLANS} fleets per row.",
        reference=REFERENCE,
        tables=(Table.of(["first seed", *SPREAD], rows),),
    )


@benchmark
def latency_estimate_special(smoke: bool) -> Result:
    """The kind of plan where the closed form is furthest off: phases of evenly spaced requests, and batches."""
    count, requests = (1, 300) if smoke else (SPECIAL_PLANS, SPECIAL_REQUESTS)
    seeds = itertools.count(FIRST_SPECIAL, SPECIAL_STEP)
    plans = filter(None, (_cheapest(_problem(seed, Sharing.SHARED, Arrivals.PERIODIC)) for seed in seeds))
    ratios = [
        latency(plan).p99_s / _simulated_p99_s(plan, requests, number)
        for number, plan in enumerate(itertools.islice(plans, count))
    ]
    row = [f"{count} with batches on shared workers and periodic arrivals", f"{requests:,}", *_spread(ratios)]
    return Result(
        title="p99 latency: closed form over simulated, hard cases",
        topic=Topic.PREDICTION,
        method="The kind of plan where the closed form is furthest off. Requests that arrive evenly spaced meet as "
        "their phases happen to lie, in the same way for ever, and the closed form does not model phases. The "
        "simulator decides whether a plan is handed out.",
        reference=REFERENCE,
        tables=(Table.of(["plans", "requests each", *SPREAD], [row]),),
    )


def _spread(ratios: Sequence[float]) -> list[str]:
    return [f"{figure:.2f}" for figure in (min(ratios), statistics.median(ratios), max(ratios))]


def _ratios(first: int, smoke: bool) -> tuple[Mapping[str, Sequence[float]], Sequence[float]]:
    """Ratios by kind of plan, and the seconds of each evaluation of the closed form."""
    found: dict[str, list[float]] = {}
    took_s: list[float] = []
    for number, (label, plan) in enumerate(itertools.islice(_plans(first), 4 if smoke else PLANS)):
        began = time.perf_counter()
        estimate_s = latency(plan).p99_s
        took_s.append(time.perf_counter() - began)
        simulated_s = _simulated_p99_s(plan, REQUESTS, number)
        for key in (label, "all"):
            found.setdefault(key, []).append(estimate_s / simulated_s)
    return found, took_s


def _simulated_p99_s(plan: Plan, requests: int, seed: int) -> float:
    duration_s = requests / plan.sources[0].rate_per_s
    settings = SimulationSettings(duration_s=duration_s, warmup_s=0.1 * duration_s, seed=seed)
    return simulate(plan, brains, settings).latency_p99_s


def _cheapest(problem: Problem) -> Plan | None:
    return solve(problem, explained=False, time_limit_s=60, clock=time.process_time).plan


def _plans(first: int) -> Iterator[tuple[str, Plan]]:
    """An endless sequence of cheapest plans of small fleets of all kinds."""
    for seed in itertools.count(first):
        for sharing in Sharing:
            arrivals = Arrivals.PERIODIC if seed % 3 == 2 else Arrivals.POISSON
            plan = _cheapest(_problem(seed, sharing, arrivals))
            if plan is not None:
                yield f"{'batches' if seed % 2 else 'one by one'}, {sharing.value}, {arrivals.value}", plan


def _problem(seed: int, sharing: Sharing, arrivals: Arrivals) -> Problem:
    workers = (20, 40, 80, 10)[seed % 4]
    batches = (1, 2, 4, 8) if seed % 2 else (1,)
    size = Size(3 + seed % 6, 3, 6 + seed % 5, workers, sharing, batches)
    problem = fleet(seed, size)
    sources = tuple(replace(source, arrivals=arrivals) for source in problem.sources)
    return replace(problem, sources=sources, utilisation=(0.8, 0.5)[seed % 5 == 1])
