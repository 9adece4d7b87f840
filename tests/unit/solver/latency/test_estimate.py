"""The closed form of latency beside the simulator, and plans found for a p99 that the cheapest plan breaks."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.fleet import Size, fleet
from jellybean.planning import brains
from jellybean_solver import Arrivals, Link, Plan, Problem, Sharing, SimulationSettings, evaluate, simulate, solve
from jellybean_solver.latency.estimate import latency
from jellybean_solver.latency.stations import Stations
from tests.plan_check import complaints
from tests.support.small_problems import box, gpu, operator, problem, variant


def simulated_p99_s(plan: Plan, requests: int = 4000) -> float:
    duration_s = requests / plan.sources[0].rate_per_s
    return simulate(
        plan, brains, SimulationSettings(duration_s=duration_s, warmup_s=0.1 * duration_s, seed=1)
    ).latency_p99_s


def small(seed: int, sharing: Sharing = Sharing.SHARED) -> Problem:
    return fleet(seed, Size(operators=3, variants=2, pools=6, workers=20, sharing=sharing))


def cheapest(problem: Problem, p99_s: float | None = None) -> Plan | None:
    return solve(problem, explained=False, p99_s=p99_s).plan


def is_near(problem: Problem, requests: int) -> None:
    plan = cheapest(problem)
    assert plan is not None
    assert 0.9 <= latency(plan).p99_s / simulated_p99_s(plan, requests) <= 2.2


def with_arrivals(problem: Problem, arrivals: Arrivals) -> Problem:
    return replace(problem, sources=tuple(replace(source, arrivals=arrivals) for source in problem.sources))


@pytest.mark.parametrize("seed", (0, pytest.param(3, marks=pytest.mark.slow)))
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("arrivals", Arrivals)
def test_is_near_the_simulator(seed: int, sharing: Sharing, arrivals: Arrivals) -> None:
    is_near(with_arrivals(small(seed, sharing), arrivals), requests=2000)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("arrivals", Arrivals)
@pytest.mark.parametrize("batches", ((1,), (1, 2, 4, 8)))
def test_is_near_a_longer_simulation(seed: int, sharing: Sharing, arrivals: Arrivals, batches: tuple[int, ...]) -> None:
    size = Size(operators=3, variants=2, pools=6, workers=20, sharing=sharing, batches=batches)
    is_near(with_arrivals(fleet(seed, size), arrivals), requests=10_000)


@pytest.mark.parametrize("sharing", Sharing)
def test_runs_of_several_are_near_the_simulator(sharing: Sharing) -> None:
    size = Size(operators=4, variants=2, pools=6, workers=20, sharing=sharing, batches=(1, 2, 4, 8))
    is_near(fleet(1, size), requests=2000)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", Sharing)
def test_a_shorter_p99_costs_more_and_is_kept(sharing: Sharing) -> None:
    costs_more_and_is_kept(small(1, sharing), (0.6,))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sharing", Sharing)
def test_ever_shorter_p99s_cost_more_and_are_kept(seed: int, sharing: Sharing) -> None:
    costs_more_and_is_kept(small(seed, sharing), (0.8, 0.5))


def costs_more_and_is_kept(problem: Problem, shares: tuple[float, ...]) -> None:
    plan = cheapest(problem)
    assert plan is not None
    before = plan
    for share in shares:
        asked_s = share * latency(plan).p99_s
        found = cheapest(problem, asked_s)
        assert found is not None
        assert latency(found).meets(asked_s)
        assert not evaluate(problem, found).complaints
        assert not complaints(problem, found)
        assert simulated_p99_s(found) <= 1.15 * asked_s
        proof = found.certificate
        assert before.cost.total_usd_per_h <= found.cost.total_usd_per_h * (1 + 1e-9)
        assert plan.certificate.bound <= proof.bound * (1 + 1e-9) <= proof.objective * (1 + 2e-9)
        assert proof.gap == pytest.approx(1 - proof.bound / proof.objective, abs=1e-9)


def test_a_p99_that_nothing_meets() -> None:
    problem = small(0)
    found = solve(problem, explained=False, p99_s=1e-4)
    assert found.plan is None and found.infeasibility is not None
    assert "no plan keeps a p99 latency of 100 µs even with zero queueing delay" in found.infeasibility.reasons[0]
    assert found.infeasibility.least_usd_per_h == float("inf")


def test_a_p99_that_the_cheapest_plan_keeps_changes_nothing() -> None:
    problem = small(1)
    plan = cheapest(problem)
    assert plan is not None
    assert cheapest(problem, 10 * latency(plan).p99_s) == plan


@pytest.mark.nightly
def test_large_problems_keep_a_p99_within_a_stated_gap() -> None:
    problem = fleet(1, Size(operators=12, variants=3, pools=40, workers=1000))
    solved = partial(solve, problem, explained=False, time_limit_s=120.0, clock=time.monotonic)
    plan = solved().plan
    assert plan is not None
    before = latency(plan)
    asked_s = 0.9 * max(before.p99_s, before.unqueued_s)
    found = solved(p99_s=asked_s).plan
    assert found is not None
    assert latency(found).meets(asked_s)
    assert not complaints(problem, found)
    assert found.certificate.bound <= found.cost.total_usd_per_h * (1 + 1e-9)


def test_waiting_grows_with_load_and_without_end() -> None:
    problem = small(2)
    plan = cheapest(problem)
    assert plan is not None
    busier = replace(
        plan, workers=tuple(replace(worker, load=min(0.95, 1.15 * worker.load)) for worker in plan.workers)
    )
    full = replace(plan, workers=tuple(replace(worker, load=1.0) for worker in plan.workers))
    assert latency(plan).p99_s < latency(busier).p99_s < float("inf")
    assert latency(full).p99_s == float("inf")
    assert latency(plan).unqueued_s == latency(full).unqueued_s


def test_what_happens_further_up_makes_nothing_irregular_below() -> None:
    """Requests go on from the link to one worker or to many in turn: on the link they meet just as often."""

    def planned(gpu_s: float) -> Plan:
        steps = [operator("a", ["camera"], variant("v", {"box": 0.02}, {"b": 1e5}))]
        steps.append(operator("b", ["a"], variant("v", {"gpu": gpu_s})))
        links = (Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=1.1e6),)
        pools = [box(2), gpu(40, sharing=Sharing.EXCLUSIVE)]
        plan = cheapest(problem(*steps, pools=pools, rate_per_s=10.0, links=links))
        assert plan is not None
        return plan

    one, many = planned(0.05), planned(1.6)
    assert (len(one.workers), len(many.workers)) == (2, 17)
    assert Stations(many).links["edge", "cloud"].own.mean_s <= 1.5 * Stations(one).links["edge", "cloud"].own.mean_s
