"""Alike sites in virtual time: queues are those of one site, the tier above sees the sum."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet import Size, fleet
from jellybean.planning import brains
from jellybean.planning.simulation import highest_sustained_rate, load_by_worker, simulate_plan, unloaded_latency_s
from jellybean_agent import SiteRoutes, Sites
from jellybean_solver import (
    Arrivals,
    Edge,
    Link,
    Plan,
    Route,
    ServiceTime,
    Sharing,
    SimulationSettings,
    Slo,
    link_ends,
    rate_trace,
    replay,
    simulate,
    solve,
    tier_at,
    worker_at,
)
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.sites import site_of
from tests.property.simulator.plans import SOURCE, chain, exponential, operator, plan
from tests.support.simulated_queues import measured


def in_sites(one: Plan, sites: int) -> Plan:
    """The plan of a tier `edge` as many times."""
    operators = tuple(replace(op, rate_per_s=op.rate_per_s * sites) for op in one.operators)
    return replace(one, operators=operators, sites={"edge": sites})


def to_cloud(rate_per_s: float, edge_s: ServiceTime, cloud_s: ServiceTime, link: Link, sites: int) -> Plan:
    """Every request first at a box of its site, then on the one worker in the cloud."""
    operators = [
        operator("near", [Edge("image", "near")], rate_per_s, {"box": edge_s}, {"far": 1000.0}),
        operator("far", [Edge("near", "far")], rate_per_s, {"gpu": cloud_s}),
    ]
    source = replace(SOURCE, rate_per_s=rate_per_s)
    workers = {"box-1": "edge", "gpu-1": "cloud"}
    return in_sites(plan([source], operators, [Route(1.0, {"near": "box-1", "far": "gpu-1"})], workers, [link]), sites)


@pytest.mark.slow
@pytest.mark.parametrize("sites", (1, 8, 100))
def test_each_site_is_a_queue_of_its_own(sites: int) -> None:
    """M/M/1 with the rate of one site; not one worker a hundred times as fast."""
    result = simulate_plan(in_sites(chain([exponential(0.1)], 6.0), sites), duration_s=4000 / sites, warmup_s=40.0)

    assert result.latency_mean_s == pytest.approx(1 / (10 - 6), rel=0.1)
    assert result.utilisation == {"w1-1": pytest.approx(0.6, rel=0.05)}
    assert result.throughput_per_s == pytest.approx(6.0 * sites, rel=0.05)


@pytest.mark.slow
def test_the_tier_above_sees_the_sum() -> None:
    """A hundred sites' departures come together nearly as Poisson: M/D/1 in the cloud, no wait at the edge."""
    free = Link("edge", "cloud")
    simulated = to_cloud(0.06, ServiceTime(0.001, 0.001), ServiceTime(0.1, 0.1), free, 100)
    found = measured(simulated, duration_s=4000.0, warmup_s=100.0)

    assert found.utilisation("gpu-1") == pytest.approx(0.6, rel=0.05)
    assert found.operators["far"].wait_mean_s == pytest.approx(0.6 * 0.1 / (2 * 0.4), rel=0.1)


@pytest.mark.slow
def test_each_site_has_a_link_of_its_own() -> None:
    link = Link("edge", "cloud", bandwidth_bytes_per_s=2000.0, latency_s=0.01)
    simulated = to_cloud(1.0, ServiceTime(0.001, 0.001), ServiceTime(0.0, 0.0), link, 50)
    found = measured(simulated, duration_s=200.0, warmup_s=20.0)

    assert found.utilisation("edge->cloud", 50) == pytest.approx(0.5, rel=0.05)
    wait_s = 0.5 * 0.5 / (2 * 0.5)  # M/D/1: half a second a message
    assert found.result.latency_mean_s == pytest.approx(0.001 + wait_s + 0.5 + 0.01, rel=0.1)
    assert unloaded_latency_s(simulated) == pytest.approx(0.001 + 0.5 + 0.01, rel=1e-3)


def test_predictions_are_of_all_sites() -> None:
    simulated = in_sites(chain([ServiceTime(0.1, 0.1)], 5.0), 4)

    assert load_by_worker(simulated) == {"w1-1": pytest.approx(0.5)}
    assert highest_sustained_rate(simulated, window_s=20.0, seeds=1) == pytest.approx(40.0, rel=0.1)


def test_a_trace_is_of_each_site() -> None:
    simulated = in_sites(chain([ServiceTime(0.1, 0.1)], 5.0), 10)
    trace = rate_trace([0.0, 50.0], 100.0, {"image": [2.0, 8.0]})
    found = replay(simulated, brains, trace, slow_latency_s=0.1)

    assert [i.rates_per_s for i in found.intervals] == [{"image": 2.0}, {"image": 8.0}]
    assert [i.offered for i in found.intervals] == [pytest.approx(1000, rel=0.1), pytest.approx(4000, rel=0.1)]
    assert [i.utilisation for i in found.intervals] == [pytest.approx(0.2, rel=0.1), pytest.approx(0.8, rel=0.1)]
    assert {i.busiest for i in found.intervals} == {"w1-1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
@pytest.mark.parametrize("arrivals", Arrivals)
def test_the_closed_form_is_near_the_simulator(seed: int, arrivals: Arrivals) -> None:
    sharing = (Sharing.SHARED, Sharing.EXCLUSIVE)[seed % 2]
    problem = fleet(seed, Size(operators=3, variants=2, pools=16, workers=140, sharing=sharing, sites=20))
    sources = tuple(replace(source, arrivals=arrivals) for source in problem.sources)
    wide = tuple(replace(link, bandwidth_bytes_per_s=None) for link in problem.links)
    found = solve(replace(problem, sources=sources, links=wide, slo=Slo()), explained=False).plan
    assert found is not None
    duration_s = 20_000 / (20 * problem.sources[0].rate_per_s)
    simulated = simulate(found, brains, SimulationSettings(duration_s=duration_s, warmup_s=0.3 * duration_s, seed=1))

    assert 0.85 <= latency(found).p99_s / simulated.latency_p99_s <= (3.0 if arrivals is Arrivals.POISSON else 4.0)


SITES = {"store": 6, "region": 2}


def test_places_and_names() -> None:
    assert [site_of(SITES, "store", place) for place in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [site_of(SITES, "region", place) for place in range(6)] == [0, 0, 0, 1, 1, 1]
    assert {site_of(SITES, "cloud", place) for place in range(6)} == {0}
    assert tier_at(SITES, "store", 4) == "store-5" and tier_at(SITES, "cloud", 0) == "cloud"
    assert worker_at(SITES, "region", "hub-1", 1) == "region-2/hub-1" and worker_at(SITES, "cloud", "gpu", 0) == "gpu"


def test_agents_and_solver_name_alike() -> None:
    tiers = {"box-1": "store", "hub-1": "region", "gpu-1": "cloud"}
    sites = Sites(SITES)
    routes = SiteRoutes(
        [{"a": "box-1", "b": "hub-1", "c": "gpu-1"}, {"a": "hub-1", "b": "hub-1", "c": "gpu-1"}], tiers, sites
    )

    assert len(routes) == 12
    for place in range(6):
        at = {name: worker_at(SITES, tier, name, site_of(SITES, tier, place)) for name, tier in tiers.items()}
        assert routes[2 * place] == {"a": at["box-1"], "b": at["hub-1"], "c": at["gpu-1"]}
        assert routes[2 * place + 1] == {"a": at["hub-1"], "b": at["hub-1"], "c": at["gpu-1"]}
    links = replace(chain([ServiceTime(0.1, 0.1)], 1.0), sites=SITES)
    assert list(link_ends(links, Link("store", "region")))[2:4] == [("store-3", "region-1"), ("store-4", "region-2")]
    assert set(link_ends(links, Link("region", "cloud"))) == {("region-1", "cloud"), ("region-2", "cloud")}
