"""Rate traces over hand-made plans."""

from __future__ import annotations

import dataclasses
import math

import pytest

from jellybean.planning import brains, slow_latency_s
from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Arrivals,
    Link,
    Plan,
    RateTrace,
    Replay,
    ServiceTime,
    Slo,
    SolverError,
    Source,
    rate_trace,
    replay,
)
from jellybean_solver.simulation.trace import sampled
from tests.property.simulator.plans import chain, exponential, operator, plan
from tests.unit.simulator.test_simulation import two_streams

FIXED = ServiceTime(0.1, 0.1)


def steps(*rates: float, each_s: float = 100.0, source: str = "image") -> RateTrace:
    return rate_trace([i * each_s for i in range(len(rates))], len(rates) * each_s, {source: rates})


def run(plan: Plan, trace: RateTrace, **options: int) -> Replay:
    return replay(plan, brains, trace, slow_latency_s=slow_latency_s(plan), **options)


def test_below_capacity_every_target_holds() -> None:
    slo = Slo(latency_p99_s=2.0, budget_usd_per_h=1.5)
    found = run(chain([FIXED], 5.0, slo=slo), steps(2, 6, 3))
    assert found.breaks == ()
    assert found.share == 1
    assert [interval.backlog < 10 for interval in found.intervals] == [True] * 3
    assert [interval.rates_per_s["image"] for interval in found.intervals] == [2, 6, 3]


def test_above_capacity_breaks_when_it_begins_and_drains_later() -> None:
    found = run(chain([FIXED], 5.0, slo=Slo(latency_p99_s=2.0)), steps(4, 20, 1, 1))
    assert all(item.spans_s[0][0] == item.start_s and item.spans_s[0][1] >= item.end_s for item in found.breaks)
    assert [(item.target, item.start_s, item.end_s) for item in found.breaks] == [
        ("rate", 100.0, 200.0),
        ("latency_p99", 100.0, 200.0),
    ]
    _, peak, after, _ = found.intervals
    assert peak.backlog == pytest.approx(1000, rel=0.1)
    assert peak.busiest == "w1-1"
    assert peak.utilisation > 0.98
    assert after.answered > after.offered
    assert sum(interval.offered for interval in found.intervals) == found.requests


def test_overload_breaks_without_any_slo() -> None:
    (broken,) = run(chain([FIXED], 5.0), steps(4, 20, 1, 1, 20)).breaks
    assert broken.target == "rate"
    assert [begin for begin, _ in broken.spans_s] == [100.0, 400.0]  # all of it, and what is drained between is not
    assert broken.spans_s[-1] == (400.0, 500.0)
    assert broken.value < broken.limit


def test_a_full_link_is_the_busiest() -> None:
    look = operator("op1", chain([FIXED], 5.0).operators[0].inputs, 5.0, {"w1": ServiceTime(0.001, 0.001)})
    link = Link("edge", "cloud", 0.1, bandwidth_bytes_per_s=10_000.0)
    routes = chain([FIXED], 5.0).routes
    linked = plan([Source("image", "edge", 5.0, 1000.0)], [look], routes, {"w1-1": "cloud"}, [link])
    found = run(linked, steps(5, 20))
    assert found.intervals[1].busiest == "edge->cloud"
    assert found.breaks[0].start_s == 100.0
    assert found.intervals[1].network_usd_per_h == pytest.approx(4 * found.intervals[0].network_usd_per_h)


def test_the_budget_counts_the_traffic_of_the_moment() -> None:
    look = operator("op1", chain([FIXED], 5.0).operators[0].inputs, 5.0, {"w1": ServiceTime(0.001, 0.001)})
    linked = plan(
        [Source("image", "edge", 5.0, 2.0**20)],
        [look],
        chain([FIXED], 5.0).routes,
        {"w1-1": "cloud"},
        [Link("edge", "cloud", 0.1)],
        slo=Slo(budget_usd_per_h=1.0 + 20 * 3600 / 1024 * 0.1),
    )
    found = run(linked, steps(10, 20, 30))
    (broken,) = found.breaks
    assert (broken.target, broken.start_s) == ("budget", 200.0)
    assert broken.value == pytest.approx(1.0 + 30 * 3600 / 1024 * 0.1)
    assert [i.network_usd_per_h for i in found.intervals] == pytest.approx(
        [r * 3600 / 1024 * 0.1 for r in (10, 20, 30)]
    )


def test_a_pause_of_the_rate_has_no_arrivals_and_the_rest_goes_on() -> None:
    found = run(chain([FIXED], 5.0, Arrivals.PERIODIC), steps(4, 0, 4))
    assert [interval.offered for interval in found.intervals] == [400, 0, 400]
    assert found.breaks == ()


def test_streams_have_rates_of_their_own() -> None:
    both = {"image": [8.0, 16.0], "sound": [4.0, 2.0]}
    found = run(two_streams(), rate_trace([0, 100], 200, both))
    offered = [interval.offered for interval in found.intervals]
    assert offered == [pytest.approx(800 + 400, rel=0.1), pytest.approx(1600 + 200, rel=0.1)]


def test_sources_of_one_stream_must_agree() -> None:
    single = chain([FIXED], 5.0)
    other = Source("speech", "edge", 5.0, 1.0)
    edges = (*single.operators[0].inputs, dataclasses.replace(single.operators[0].inputs[0], upstream="speech"))
    joined = dataclasses.replace(
        single, sources=(*single.sources, other), operators=(dataclasses.replace(single.operators[0], inputs=edges),)
    )
    with pytest.raises(SolverError, match="from 0 s on"):
        run(joined, rate_trace([0.0], 10.0, {"image": [5.0], "speech": [6.0]}))


@pytest.mark.slow
def test_a_long_trace_is_sampled_where_it_is_quiet() -> None:
    trace = steps(2, 9.5, 12, 2, 2, each_s=1000.0)
    found = run(chain([FIXED], 5.0), trace, most_requests=24_500)
    lengths = [interval.simulated_s for interval in found.intervals]
    assert lengths[1:4] == [1000, 1000, 1000]  # nearly full, overloaded, working off
    assert lengths[0] == pytest.approx(lengths[4])
    assert lengths[0] < 1000
    assert found.share < 1
    assert found.requests == pytest.approx(24_500, rel=0.05)
    assert [interval.end_s for interval in found.intervals] == [1000, 2000, 3000, 4000, 5000]


def test_an_overload_too_long_to_replay_is_refused_with_its_figures() -> None:
    trace = steps(20, each_s=1000.0)
    with pytest.raises(SolverError, match="20,000 requests"):
        sampled(trace, ["image"], [{"w1-1": 2.0}], 10_000)


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_a_constant_trace_is_the_plain_simulation(arrivals: Arrivals) -> None:
    simulated = chain([exponential(0.1), FIXED], 7.0, arrivals)
    plain = simulate_plan(simulated, seed=5, duration_s=300.0, warmup_s=0.0)
    (interval,) = run(simulated, steps(7.0, each_s=300.0), seed=5).intervals
    assert interval.offered == plain.offered
    assert interval.answered / 300.0 == plain.throughput_per_s
    assert (interval.latency_p50_s, interval.latency_p99_s) == (plain.latency_p50_s, plain.latency_p99_s)
    assert interval.utilisation == pytest.approx(max(plain.utilisation.values()))


def test_the_same_seed_repeats_and_another_does_not() -> None:
    simulated, trace = chain([exponential(0.1)], 5.0), steps(3, 6)
    assert run(simulated, trace, seed=1) == run(simulated, trace, seed=1)
    assert run(simulated, trace, seed=1) != run(simulated, trace, seed=2)


@pytest.mark.parametrize("times", [[], [1.0], [0.0, 5.0, 5.0], [0.0, 20.0]])
def test_times_must_ascend_from_0(times: list[float]) -> None:
    with pytest.raises(SolverError, match="ascend"):
        rate_trace(times, 10.0, {"image": [1.0] * len(times)})


def test_a_rate_that_is_no_rate_is_refused() -> None:
    for rate in (-1.0, math.nan, math.inf):
        with pytest.raises(SolverError, match="rate"):
            rate_trace([0.0], 10.0, {"image": [rate]})


def test_what_the_plan_leaves_out_is_not_replayed() -> None:
    trace = rate_trace([0.0], 100.0, {"image": [5.0], "w14/camera": [3.0]})
    found = run(chain([FIXED], 5.0), trace)
    assert found.intervals[0].rates_per_s == {"image": 5.0}
    assert found.requests == pytest.approx(500, abs=60)
