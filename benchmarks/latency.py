"""The solver's closed form of p99 latency beside the simulator's, over generated plans."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.fleet import Size, fleet
from benchmarks.registry import benchmark, print_table
from jellybean.simulation import brains
from jellybean_solver import Arrivals, Problem, Sharing, solve
from jellybean_solver.latency import latency
from jellybean_solver.plan import Plan
from jellybean_solver.simulate import simulate

REQUESTS = 10_000
PLANS = 50
FURTHER = (1000, 3000, 4000, 6000)  # first seeds


@benchmark
def latency_estimate(smoke: bool) -> None:
    """Ratios of the closed form's p99 to the simulator's: above 1 it is on the safe side."""
    found, took_s = _ratios(0, smoke)
    _print(f"{REQUESTS:,} requests each; closed form {_ms(took_s)} a plan", found)


@benchmark
def latency_estimate_further(smoke: bool) -> None:
    """The same in sets of other seeds."""
    for first in FURTHER:
        _print(f"seeds from {first:,}", _ratios(first, smoke)[0])


def _print(title: str, found: Mapping[str, Sequence[float]]) -> None:
    rows = [
        [label, len(ratios), f"{min(ratios):.2f}", f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}"]
        for label, ratios in sorted(found.items())
    ]
    header = ["plans", "number", "least", "median", "most"]
    print_table(f"p99 latency in closed form / simulated ({title})", header, rows)


def _ratios(first: int, smoke: bool) -> tuple[Mapping[str, Sequence[float]], Sequence[float]]:
    """By kind of plan, and the seconds that the closed form took for each."""
    found: dict[str, list[float]] = {}
    took_s: list[float] = []
    for number, (label, plan) in enumerate(itertools.islice(_plans(first), 4 if smoke else PLANS)):
        began = time.perf_counter()
        estimate_s = latency(plan).p99_s
        took_s.append(time.perf_counter() - began)
        duration_s = REQUESTS / plan.sources[0].rate_per_s
        simulated = simulate(plan, brains, duration_s=duration_s, warmup_s=0.1 * duration_s, seed=number)
        for key in (label, "all"):
            found.setdefault(key, []).append(estimate_s / simulated.latency_p99_s)
    return found, took_s


def _plans(first: int) -> Iterator[tuple[str, Plan]]:
    """Cheapest plans of small fleets of all kinds, one after the other."""
    for seed in itertools.count(first):
        for sharing in Sharing:
            arrivals = Arrivals.PERIODIC if seed % 3 == 2 else Arrivals.POISSON
            problem = _problem(seed, sharing, arrivals)
            plan = solve(problem, explained=False, time_limit_s=60, clock=time.process_time).plan
            if plan is not None:
                yield f"{'batches' if seed % 2 else 'one by one'}, {sharing.value}, {arrivals.value}", plan


def _problem(seed: int, sharing: Sharing, arrivals: Arrivals) -> Problem:
    workers = (20, 40, 80, 10)[seed % 4]
    batches = (1, 2, 4, 8) if seed % 2 else (1,)
    size = Size(3 + seed % 6, 3, 6 + seed % 5, workers, sharing, batches)
    problem = fleet(seed, size)
    sources = tuple(replace(source, arrivals=arrivals) for source in problem.sources)
    return replace(problem, sources=sources, utilisation=(0.8, 0.5)[seed % 5 == 1])


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.1f} ms"
