"""Plans found for a p99 that the cheapest plan breaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jellybean_solver import Link, Pool, large, solve
from jellybean_solver.latency import latency
from tests.plan_check import complaints
from tests.unit.solver.fleet import operator, problem, variant


@pytest.mark.parametrize("is_large", (False, True))
def test_a_link_that_would_be_full_keeps_room_for_its_queue(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    """The cheapest plan fills the link, on which messages then wait without end."""
    if is_large:
        monkeypatch.setattr(large, "MOST_PAIRS", 0)
    pools = [Pool("box", "edge", 100, 1.0), Pool("gpu", "cloud", 100, 0.1)]
    step = operator("a", ["camera"], variant("v", {"box": 0.1, "gpu": 0.1}))
    links = [Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=5e6)]
    asked = replace(problem(step, pools=pools, rate_per_s=100.0, message_bytes=1e5), links=tuple(links))
    cheapest = solve(asked).plan
    assert cheapest is not None
    assert math.isinf(latency(cheapest).p99_s)
    found = solve(asked, p99_s=2.0).plan
    assert found is not None
    assert latency(found).meets(2.0)
    assert not complaints(asked, found)
    assert found.links == asked.links
    assert cheapest.cost.total_usd_per_h == pytest.approx(5 * 1.0 + 5 * 0.1)
    assert found.cost.total_usd_per_h <= 7 * 1.0 + 5 * 0.1 + 1e-6  # by headroom on workers alone it is dearer


@pytest.mark.parametrize("is_large", (False, True))
def test_where_headroom_is_no_help_faster_workers_are_found(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    if is_large:
        monkeypatch.setattr(large, "MOST_PAIRS", 0)
    pools = [Pool("slow", "edge", 300, 0.1), Pool("fast", "edge", 30, 20.0)]
    step = operator("a", ["camera"], variant("v", {"slow": 1.0, "fast": 0.05}))
    asked = problem(step, pools=pools, rate_per_s=10.0)
    cheapest = solve(asked).plan
    assert cheapest is not None
    assert latency(cheapest).p99_s > 0.8
    found = solve(asked, p99_s=0.8).plan
    assert found is not None
    assert latency(found).meets(0.8)
    assert {worker.pool for worker in found.workers} == {"fast"}
