"""Simulated plans whose requests wait for others, and what the closed form says of their p99."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Arrivals,
    Certificate,
    Cost,
    Edge,
    Plan,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    from_document,
    to_document,
)
from jellybean_solver.latency.estimate import latency
from tests.planned import planned_operator
from tests.support.simulated_queues import measured

RUN_S, HOP_S = 0.01, 0.001


def plan(rate_per_s: float, delay_s: float, arrivals: Arrivals = Arrivals.POISSON) -> Plan:
    """One operator that takes eight requests in the time of one."""
    service = {"box": ServiceTime(RUN_S, RUN_S)}
    edges = [Edge("camera", "look")]
    look = replace(planned_operator("look", edges, "v", rate_per_s, service, batch=8), batch_delay_s=delay_s)
    load = rate_per_s * RUN_S / 8
    return Plan(
        name="one",
        tiers=("edge",),
        sources=(Source("camera", "edge", rate_per_s, 16.0, arrivals),),
        operators=(look,),
        workers=(PlannedWorker("box-1", "box", "edge", 1.0, Sharing.SHARED, {"look": rate_per_s}, load),),
        routes=(Route(1.0, {"look": "box-1"}),),
        links=(),
        slo=Slo(),
        utilisation=0.8,
        hop_s=HOP_S,
        cost=Cost(1.0, 0.0),
        accuracy=None,
        certificate=Certificate(1.0, 1.0, 0.0, "optimal"),
    )


def test_a_lonely_request_waits_the_whole_delay() -> None:
    found = simulate_plan(plan(2.0, 0.05, Arrivals.PERIODIC), duration_s=60.0)
    assert found.latency_p50_s == pytest.approx(2 * HOP_S + 0.05 + RUN_S)


@pytest.mark.parametrize(("rate_per_s", "delay_s"), [(5.0, 0.05), (80.0, 0.005), (300.0, 0.05)])
def test_the_closed_form_adds_the_whole_delay_and_the_simulated_p99_grows_by_no_more(
    rate_per_s: float, delay_s: float
) -> None:
    own, at_once = plan(rate_per_s, delay_s), plan(rate_per_s, 0.0)
    assert latency(own).p99_s == pytest.approx(latency(at_once).p99_s + delay_s)
    assert latency(own).unqueued_s == pytest.approx(2 * HOP_S + delay_s + RUN_S)
    late_s, soon_s = (simulate_plan(one, duration_s=1500.0 / rate_per_s).latency_p99_s for one in (own, at_once))
    assert late_s <= soon_s + delay_s * 1.02


def test_larger_runs_form_and_the_worker_is_less_busy() -> None:
    at_once, later = (measured(plan(80.0, delay_s), duration_s=15.0) for delay_s in (0.0, 0.05))
    sizes = [found.operators["look"].requests / found.operators["look"].runs for found in (at_once, later)]
    assert sizes[1] > 2 * sizes[0]
    assert later.utilisation("box-1") < 0.5 * at_once.utilisation("box-1")


def test_a_plan_without_a_delay_keeps_its_hash_and_one_with_it_is_read_back() -> None:
    assert "batch_delay_s" not in to_document(plan(5.0, 0.0))["operators"][0]
    assert from_document(to_document(plan(5.0, 0.02))) == plan(5.0, 0.02)
