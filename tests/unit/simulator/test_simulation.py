"""What the simulator reports, and the questions asked of it."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest

from jellybean.planning import check_latency, simulation
from jellybean.planning.simulation import (
    capacity_scale,
    highest_sustained_rate,
    simulate_plan,
    unloaded_latency_s,
)
from jellybean_solver import Arrivals, Edge, EdgeKind, Link, Plan, Route, ServiceTime, Slo, SolverError, Source
from tests.property.simulator.plans import chain, exponential, operator, plan
from tests.support.simulated_queues import measured

FIXED = ServiceTime(0.1, 0.1)


def two_streams(rate: float = 8.0, other: float = 2.0) -> Plan:
    """Two workflows that share nothing but a worker."""
    sources = [Source("image", "edge", rate, 1.0, Arrivals.PERIODIC), Source("sound", "edge", other, 1.0)]
    operators = [
        operator("look", [Edge("image", "look")], rate, {"w": ServiceTime(0.02, 0.02)}),
        operator("hear", [Edge("sound", "hear")], other, {"w": ServiceTime(0.05, 0.05)}),
    ]
    return plan(sources, operators, [Route(1.0, {"look": "w-1", "hear": "w-1"})], {"w-1": "edge"})


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    simulated = chain([exponential(0.1)], 5.0)
    assert simulate_plan(simulated, seed=3) == simulate_plan(simulated, seed=3)
    assert simulate_plan(simulated, seed=3) != simulate_plan(simulated, seed=4)


@pytest.mark.slow
def test_a_result_does_not_depend_on_the_process() -> None:
    code = (
        "from tests.property.simulator.plans import chain, exponential\n"
        "from jellybean.planning.simulation import simulate_plan\n"
        "print(simulate_plan(chain([exponential(0.1)], 5.0), duration_s=50).latency_mean_s)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_the_default_window_holds_enough_requests_for_a_p99() -> None:
    assert simulate_plan(chain([FIXED], 5.0, Arrivals.PERIODIC)).offered == 2000
    assert simulate_plan(chain([FIXED], 5.0, Arrivals.PERIODIC), rate_scale=0.001).offered == 2000
    fast = simulate_plan(chain([ServiceTime(1e-5, 1e-5)], 10_000.0, Arrivals.PERIODIC))
    assert fast.offered == pytest.approx(2000, abs=1)  # however short that is: every plan has the same precision


def test_every_request_is_answered_and_percentiles_ascend() -> None:
    found = measured(chain([FIXED, FIXED], 5.0), duration_s=100)
    result = found.result
    assert result.completed == result.offered > 400
    assert result.latency_p50_s <= result.latency_p90_s <= result.latency_p99_s <= found.latency_max_s


def test_what_is_not_answered_in_time_stays_open_and_has_no_latency() -> None:
    result = simulate_plan(chain([ServiceTime(50.0, 50.0)], 5.0), duration_s=10, warmup_s=0, drain_s=1.0)
    assert result.completed == 0 < result.offered
    assert math.isnan(result.latency_p99_s)


def test_overload_shows_in_throughput_and_latency() -> None:
    found = measured(chain([FIXED], 20.0), duration_s=100, warmup_s=0)
    result = found.result
    assert result.throughput_per_s == pytest.approx(10.0, rel=0.02)
    assert result.utilisation["w1-1"] == pytest.approx(1.0, rel=0.01)
    assert found.latency_max_s > 50
    assert result.completed == result.offered


@pytest.mark.slow
def test_streams_that_share_nothing_have_their_own_rates() -> None:
    found = measured(two_streams(), duration_s=1000)
    assert found.operators["look"].runs == 8000
    assert found.operators["hear"].runs == pytest.approx(2000, rel=0.1)
    assert found.utilisation("w-1") == pytest.approx(0.26, rel=0.05)


def test_sources_of_one_request_must_have_one_rate() -> None:
    sources = [Source("image", "edge", 8.0, 1.0), Source("sound", "edge", 2.0, 1.0)]
    op = operator("both", [Edge("image", "both"), Edge("sound", "both")], 8.0, {"w": FIXED})
    with pytest.raises(SolverError, match=r"image \(8/s\) and sound \(2/s\)"):
        simulate_plan(plan(sources, [op], [Route(1.0, {"both": "w-1"})], {"w-1": "edge"}))


def test_a_join_of_two_sources_waits_for_both() -> None:
    sources = [Source(name, tier, 2.0, 1000.0, Arrivals.PERIODIC) for name, tier in (("a", "edge"), ("b", "cloud"))]
    op = operator("both", [Edge("a", "both"), Edge("b", "both")], 2.0, {"w": FIXED})
    links = [Link("edge", "cloud", 0.0, None, 0.07)]
    simulated = plan(sources, [op], [Route(1.0, {"both": "w-1"})], {"w-1": "cloud"}, links)
    assert measured(simulated, duration_s=50).latency_max_s == pytest.approx(0.17)


def test_a_source_that_fans_out_is_split_on_its_way() -> None:
    source = Source("image", "edge", 2.0, 1000.0, Arrivals.PERIODIC)
    op = operator("tile", [Edge("image", "tile", EdgeKind.FAN_OUT, 3.0)], 6.0, {"w": ServiceTime(0.01, 0.01)})
    found = measured(plan([source], [op], [Route(1.0, {"tile": "w-1"})], {"w-1": "edge"}), duration_s=50)
    assert found.operators["tile"].runs == 300
    assert found.result.latency_p50_s == pytest.approx(0.03)


def test_routes_are_drawn_by_their_weights() -> None:
    source = Source("image", "edge", 10.0, 1.0, Arrivals.PERIODIC)
    op = operator("look", [Edge("image", "look")], 10.0, {"w": ServiceTime(0.01, 0.01)})
    routes = [Route(0.7, {"look": "w-1"}), Route(0.3, {"look": "w-2"})]
    result = simulate_plan(plan([source], [op], routes, {"w-1": "edge", "w-2": "edge"}), duration_s=100)
    assert result.utilisation == {"w-1": pytest.approx(0.07), "w-2": pytest.approx(0.03)}


def test_data_that_would_need_a_link_that_is_not_there_is_refused() -> None:
    source = Source("image", "edge", 2.0, 1.0)
    op = operator("look", [Edge("image", "look")], 2.0, {"w": FIXED})
    with pytest.raises(SolverError, match="from tier edge to cloud, but there is no link"):
        simulate_plan(plan([source], [op], [Route(1.0, {"look": "w-1"})], {"w-1": "cloud"}))


@pytest.mark.parametrize("arguments", [{"duration_s": 0.0}, {"rate_scale": 0.0}, {"warmup_s": -1.0}])
def test_a_window_that_cannot_be_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(SolverError, match="must be above 0"):
        simulate_plan(chain([FIXED], 5.0), **{"duration_s": 10.0, **arguments})


def test_an_unloaded_request_meets_nobody() -> None:
    assert unloaded_latency_s(chain([FIXED, FIXED], 9.9, hop_s=0.001)) == pytest.approx(0.203)
    assert unloaded_latency_s(two_streams(8.0, 2.0)) == pytest.approx((4 * 0.02 + 0.05) / 5, rel=0.05)


def test_sources_of_one_rate_make_one_request_even_if_nothing_joins_them() -> None:
    result = simulate_plan(two_streams(2.0, 2.0), duration_s=100, arrivals=Arrivals.PERIODIC)
    assert result.offered == 200
    assert result.latency_p50_s == pytest.approx(0.07)


def test_the_highest_sustained_rate_of_constant_service_is_its_capacity() -> None:
    simulated = chain([FIXED, ServiceTime(0.04, 0.04)], 5.0)
    assert capacity_scale(simulated) * 5.0 == pytest.approx(10.0)
    assert 9.8 <= highest_sustained_rate(simulated) <= 10.0 / 0.98 * (1 + 0.4 / 20)


@pytest.mark.slow
def test_the_highest_sustained_rate_does_not_depend_on_the_rate_of_the_plan() -> None:
    quantiles = ((0.5, 0.09), (0.9, 0.12), (0.99, 0.15))
    rates = [highest_sustained_rate(chain([ServiceTime(0.1, 0.1, quantiles)], rate)) for rate in (1.0, 5.0, 50.0)]
    assert max(rates) / min(rates) < 1.03
    assert rates[0] == pytest.approx(10.0, rel=0.05)


@pytest.mark.nightly
def test_a_fast_plan_is_judged_on_a_shorter_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "PROBE_REQUESTS", 5_000)
    found = highest_sustained_rate(chain([ServiceTime(1e-3, 1e-3)], 10.0), window_s=1e6)
    assert found == pytest.approx(1_000.0, rel=0.08)


def test_a_link_can_be_what_bounds_the_rate() -> None:
    source = Source("image", "edge", 5.0, 1000.0)
    op = operator("look", [Edge("image", "look")], 5.0, {"gpu": ServiceTime(1e-3, 1e-3)})
    links = [Link("edge", "cloud", 0.1, 20_000.0, 0.05)]
    simulated = plan([source], [op], [Route(1.0, {"look": "gpu-1"})], {"gpu-1": "cloud"}, links)
    assert highest_sustained_rate(simulated) == pytest.approx(20.0, rel=0.05)


@pytest.mark.slow
def test_the_latency_slo_is_checked_on_the_plan() -> None:
    assert check_latency(chain([FIXED], 5.0)) is None
    assert check_latency(chain([FIXED], 5.0, slo=Slo(latency_p99_s=1.0))) is None
    breach = check_latency(chain([FIXED], 8.0, slo=Slo(latency_p99_s=0.3)))
    assert breach is not None
    assert "above the SLO of 300 ms" in breach
    assert re.search(
        r"mean latency over all routes with zero queueing delay 100(\.0)? ms;", breach
    )  # a sum, not exactly 0.1 s
    assert "busiest worker w1-1 at utilisation 0.80" in breach


@pytest.mark.slow
def test_a_link_that_is_busier_than_all_workers_is_named_for_a_missed_latency() -> None:
    source = Source("image", "edge", 5.0, 1000.0)
    op = operator("look", [Edge("image", "look")], 5.0, {"gpu": ServiceTime(1e-3, 1e-3)})
    for bandwidth, busiest in ((5010.0, "link edge -> cloud at 99.8 % of 0.04008 Mbit/s"), (None, "worker gpu-1 at")):
        links = [Link("edge", "cloud", 0.1, bandwidth)]
        routes, workers = [Route(1.0, {"look": "gpu-1"})], {"gpu-1": "cloud"}
        breach = check_latency(plan([source], [op], routes, workers, links, slo=Slo(latency_p99_s=5e-4)))
        assert breach is not None
        assert f"busiest {busiest}" in breach
