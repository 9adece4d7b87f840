"""Batches in virtual time, against a recursion over arrivals that knows neither brain nor events."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.planning import brains
from jellybean.planning.simulation import highest_sustained_rate, load_by_worker
from jellybean_solver import Edge, Plan, Route, ServiceTime, Source
from tests.property.simulator.plans import operator, plan
from tests.support.simulated_queues import measured

TIMES_S = {"look": {1: 0.10, 4: 0.16}, "hear": {1: 0.05, 2: 0.06}}
UPSTREAM = {"look": "image", "hear": "sound"}


def time_s(name: str, size: int) -> float:
    """On the straight line from the time of one to the time of the largest."""
    (_, one_s), (most, most_s) = sorted(TIMES_S[name].items())
    return one_s + (most_s - one_s) * (size - 1) / (most - 1)


def two_operators(rates_per_s: Mapping[str, float]) -> Plan:
    """Two streams that share a worker, each operator with batches of its own."""
    sources = [Source(UPSTREAM[name], "edge", rate, 1.0) for name, rate in rates_per_s.items()]
    operators = [
        dataclasses.replace(
            operator(name, [Edge(UPSTREAM[name], name)], rate, {"w": ServiceTime(1.0, 1.0)}),
            batch={"w": max(TIMES_S[name])},
            service={"w": {size: ServiceTime(seconds, seconds) for size, seconds in TIMES_S[name].items()}},
        )
        for name, rate in rates_per_s.items()
    ]
    return plan(sources, operators, [Route(1.0, dict.fromkeys(rates_per_s, "w-1"))], {"w-1": "edge"})


def by_hand(arrivals: Sequence[tuple[float, str]]) -> tuple[dict[float, float], int]:
    """Arrival -> answer, and the number of runs: the first that waits, and with it what waits for the same."""
    waiting, free_s, found, runs = sorted(arrivals), 0.0, {}, 0
    while waiting:
        begin_s = max(free_s, waiting[0][0])
        name = waiting[0][1]
        taken = [one for one in waiting if one[1] == name and one[0] <= begin_s][: max(TIMES_S[name])]
        waiting = [one for one in waiting if one not in taken]
        free_s = begin_s + time_s(name, len(taken))
        runs += 1
        found |= {arrived_s: free_s for arrived_s, _ in taken}
    return found, runs


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from([3.0, 12.0, 40.0]))
def test_two_operators_with_batches_on_one_worker_as_by_hand(seed: int, rate_per_s: float) -> None:
    rng, counts = random.Random(seed), {"look": 3 * rate_per_s, "hear": 6 * rate_per_s}
    arrivals = {name: sorted(rng.uniform(0, 3) for _ in range(int(count))) for name, count in counts.items()}
    case = two_operators({"look": rate_per_s, "hear": 2 * rate_per_s})  # two streams, as their rates differ
    found = measured(
        case,
        duration_s=1000.0,
        warmup_s=0.0,
        times=lambda stream, rng, phase: iter(arrivals[stream.operators[0]]),
        make_workers=partial(brains, fair_queueing_from=10**9),  # by hand is first come, first served
    )
    expected, runs = by_hand([(at, name) for name, times in arrivals.items() for at in times])
    figures = found.operators.values()
    assert found.answered_at == pytest.approx(expected)
    assert runs == sum(one.runs for one in figures)
    assert {name: one.requests for name, one in found.operators.items()} == counts
    assert sum(one.runs * one.service_mean_s for one in figures) == pytest.approx(found.busy_s["w-1"])
    waited_s = sum(one.requests * one.wait_mean_s for one in figures)
    assert found.queues["w-1"].mean * 1000.0 == pytest.approx(waited_s)


def test_the_highest_sustained_rate_is_that_of_full_batches() -> None:
    case = two_operators({"look": 20.0})  # 40 ms a request in batches of four, 100 ms alone
    assert load_by_worker(case)["w-1"] == pytest.approx(0.8)
    assert highest_sustained_rate(case, seeds=1) == pytest.approx(25.0, rel=0.05)


@pytest.mark.slow
def test_batches_fill_as_the_load_rises() -> None:
    sizes = []
    for rate in (1.0, 10.0, 15.0, 24.0):
        figures = measured(two_operators({"look": rate}), duration_s=500).operators["look"]
        sizes.append(figures.requests / figures.runs)
    assert sizes == sorted(sizes)
    assert sizes[0] < 1.1
    assert sizes[-1] > 3.5
