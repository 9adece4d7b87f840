"""Two alike sites as real processes: each request stays in its own, over its own link."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from jellybean.bench.heldout import HeldOut
from jellybean.bench.load_settings import LoadSettings
from jellybean.bench.target import Target
from jellybean.serving import Client, Running
from jellybean.serving.gateway.plans.route_choice import SiteRouteDrawer
from jellybean_agent import plan_view
from jellybean_solver import Arrivals, Link
from tests.support.tiny_models import chain

INPUTS = np.arange(40, dtype=np.float32).reshape(10, 4)
LINK = Link("edge", "cloud", 1e6, 1e6, 0.001)


def test_two_sites_are_served_by_workers_of_their_own(tmp_path: Path, start) -> None:
    running: Running = start(tmp_path, chain(tmp_path, links=[LINK], sites={"edge": 2}))
    names = {process.name for process in running.state.processes}
    assert names == {"edge-1/edge-1", "edge-2/edge-1", "cloud-1", "gateway"}

    with Client(running.gateway_address) as client:
        for _ in range(4):
            assert client.infer({"x": INPUTS[1:2]})["triple"].tolist() == [[24.0, 30.0, 36.0, 42.0]]

    target = Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, 6 * INPUTS))
    assert target.planned_per_s == 2 * 20.0  # of both sites
    result = target.measure(20.0, LoadSettings(2.0, 0.5))
    assert (result.offered, result.completed, result.failed) == (40, 40, 0)
    assert result.accuracy == 100.0
    assert set(result.utilisation) == {"edge-1", "cloud-1"}  # as the plan calls them
    assert result.cost_usd_per_h is not None
    network = 20.0 * 16 * 3600 / 2**30 * 1e6  # of both sites' links
    assert 0.6 * network < result.cost_usd_per_h - 0.3 < 1.25 * network  # less if the window ended late


def test_the_view_of_a_plan_has_every_site(tmp_path: Path) -> None:
    document = chain(tmp_path, links=[LINK], sites={"edge": 3})
    view = plan_view(document)

    assert view.hash == document["hash"]
    assert [worker.name for worker in view.serving] == ["edge-1/edge-1", "edge-2/edge-1", "edge-3/edge-1", "cloud-1"]
    assert [worker.tier for worker in view.serving] == ["edge-1", "edge-2", "edge-3", "cloud"]
    assert [(link.upstream_tier, link.downstream_tier) for link in view.links] == [
        ("edge-1", "cloud"),
        ("edge-2", "cloud"),
        ("edge-3", "cloud"),
    ]
    assert list(view.routes) == [{"double": f"edge-{site}/edge-1", "triple": "cloud-1"} for site in (1, 2, 3)]
    assert [view.tier_of("x", route) for route in range(3)] == ["edge-1", "edge-2", "edge-3"]
    assert [view.tier_of("double", route) for route in range(3)] == ["edge-1", "edge-2", "edge-3"]


def draws(drawer: SiteRouteDrawer, count: int) -> list[int]:
    """Routes that are drawn, each for a request that is served."""
    return [route for route in (drawer.draw() for _ in range(count)) if route is not None]


def test_sites_are_drawn_evenly_or_by_chance() -> None:
    weights = [0.5, 0.25, 0.25]
    even = SiteRouteDrawer(weights, 4, periodic=True)
    drawn = draws(even, 4 * 400)
    assert [route // 3 for route in drawn[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [drawn.count(route) for route in range(3)] == [pytest.approx(n, abs=2) for n in (200, 100, 100)]

    chance = SiteRouteDrawer(weights, 4, periodic=False)
    chance.reweight([[0.0, 0.0, 0.0], *[[0.0, 1.0, 0.0]] * 3])
    found = draws(chance, 4000)
    assert [sum(route // 3 == place for route in found) for place in range(4)] == [pytest.approx(1000, abs=120)] * 4
    assert {route for route in found if route >= 3} == {4, 7, 10}  # a place whose own all vanish keeps them
    assert {route for route in found if route < 3} == {0, 1, 2}
    runs = sum(one // 3 == two // 3 for one, two in pairwise(found))
    assert runs == pytest.approx(1000, abs=120)
