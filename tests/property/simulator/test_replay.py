"""Arrivals by random traces, and random plans under them."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.planning import brains, slow_latency_s
from jellybean_solver import Arrivals, arrival_times, rate_trace, replay, request_streams
from tests.property.simulator.plans import random_plan
from tests.support.examples import examples
from tests.support.simulated_queues import measured

randoms = st.randoms(use_true_random=False)
pieces = st.lists(
    st.tuples(st.floats(0.01, 50.0), st.one_of(st.just(0.0), st.floats(0.001, 40.0))), min_size=1, max_size=8
)


@settings(deadline=None)
@given(pieces, st.sampled_from(Arrivals), st.integers(0, 99), st.floats(0, 0.999))
def test_arrivals_ascend_and_none_comes_where_the_rate_is_0(
    spans: list[tuple[float, float]], arrivals: Arrivals, seed: int, phase: float
) -> None:
    ends = [sum(length for length, _ in spans[: i + 1]) for i in range(len(spans))]
    found = list(
        arrival_times([(e, r) for e, (_, r) in zip(ends, spans, strict=True)], arrivals, random.Random(seed), phase)
    )
    assert found == sorted(found)
    assert all(0 <= time < ends[-1] for time in found)
    for start, end, (_, rate) in zip([0.0, *ends], ends, spans, strict=False):
        count = sum(start <= time < end for time in found)
        if rate == 0:
            assert count == 0
        elif arrivals is Arrivals.PERIODIC:
            assert abs(count - rate * (end - start)) <= 1 + 1e-6


@given(st.floats(0.1, 50), st.floats(0.1, 100), st.sampled_from(Arrivals), st.integers(0, 99), st.floats(0, 0.999))
def test_one_piece_is_the_plain_process_to_the_last_bit(
    rate: float, end_s: float, arrivals: Arrivals, seed: int, phase: float
) -> None:
    found = list(arrival_times([(end_s, rate)], arrivals, random.Random(seed), phase))
    rng, expected = random.Random(seed), list[float]()
    if arrivals is Arrivals.PERIODIC:
        expected = list(itertools.takewhile(lambda time: time < end_s, ((n + phase) / rate for n in itertools.count())))
    else:
        while (time := (expected[-1] if expected else 0.0) + rng.expovariate(rate)) < end_s:
            expected.append(time)
    assert found == expected


def test_a_poisson_trace_has_the_rates_numbers_and_their_scatter() -> None:
    spans = [(100.0, 3.0), (150.0, 0.0), (250.0, 9.0)]
    counts = []
    for seed in range(400):
        times = list(arrival_times(spans, Arrivals.POISSON, random.Random(seed)))
        counts.append((sum(t < 100 for t in times), sum(t >= 150 for t in times)))
    for index, mean in enumerate((300, 900)):
        values = [count[index] for count in counts]
        average = sum(values) / len(values)
        assert average == pytest.approx(mean, rel=0.02)
        assert sum((v - average) ** 2 for v in values) / len(values) == pytest.approx(mean, rel=0.25)


@settings(deadline=None, max_examples=examples(40))
@given(randoms)
def test_a_constant_trace_is_the_plain_simulation_of_any_plan(rng: random.Random) -> None:
    plan = random_plan(rng, 0.7)
    length_s = 150 / min(stream.rate_per_s for stream in request_streams(plan))
    trace = rate_trace([0.0], length_s, {source.name: [source.rate_per_s] for source in plan.sources})
    (interval,) = replay(plan, brains, trace, slow_latency_s=slow_latency_s(plan, requests=20), seed=3).intervals
    simulated = measured(plan, seed=3, duration_s=length_s, warmup_s=0.0)
    plain = simulated.result
    assert (interval.offered, interval.latency_p99_s) == (plain.offered, plain.latency_p99_s)
    assert interval.answered / length_s == pytest.approx(plain.throughput_per_s)
    assert max(simulated.utilisation(name) for name in plain.utilisation) == max(plain.utilisation.values())
    assert interval.utilisation == pytest.approx(max(map(simulated.utilisation, simulated.busy_s)))


@settings(deadline=None, max_examples=examples(5))
@given(randoms)
def test_far_above_capacity_always_breaks(rng: random.Random) -> None:
    plan = random_plan(rng, 0.5)
    length_s = 400 / min(stream.rate_per_s for stream in request_streams(plan))
    rates = {source.name: [source.rate_per_s, 8 * source.rate_per_s] for source in plan.sources}
    found = replay(plan, brains, rate_trace([0.0, length_s], 2 * length_s, rates), slow_latency_s=slow_latency_s(plan))
    assert "rate" in {item.target for item in found.breaks}
    assert sum(i.offered for i in found.intervals) >= sum(i.answered for i in found.intervals)
    assert all(interval.utilisation <= 1 + 1e-9 for interval in found.intervals)
