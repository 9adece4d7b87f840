"""The coarse simulation beside the exact one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import Edge, EdgeKind, Plan, ServiceTime, Sharing, Variant, solve
from jellybean_solver.simulation.group_simulation import GroupSimulation
from jellybean_solver.time_limit import limited_work
from tests.support.small_problems import box, gpu, operator, problem, variant

BATCHES = {1: ServiceTime(0.02, 0.02), 4: ServiceTime(0.05, 0.05), 16: ServiceTime(0.15, 0.15)}


def chain(load: float) -> Plan:
    """Two operators with batches on workers of their own."""
    one = operator("one", ["camera"], Variant("only", {"box": BATCHES}, {"two": 100.0}))
    two = operator("two", ["one"], Variant("only", {"gpu": BATCHES}, {}))
    asked = problem(one, two, pools=[box(3, sharing=Sharing.EXCLUSIVE), gpu(3)], rate_per_s=150.0)
    return _solved(replace(asked, utilisation=load))


def fanned(gathered: bool) -> Plan:
    """Four children a request, gathered or not."""
    cut = Variant("only", {"box": {1: ServiceTime(0.03, 0.03)}}, {"read": 100.0})
    operators = [
        operator("cut", ["camera"], cut),
        operator(
            "read", [Edge("cut", "read", EdgeKind.FAN_OUT, 4.0)], Variant("only", {"gpu": BATCHES}, {"sum": 10.0})
        ),
    ]
    if gathered:
        operators.append(operator("sum", [Edge("read", "sum", EdgeKind.GATHER, 0.25)], variant("only", {"gpu": 0.001})))
    return _solved(replace(problem(*operators, pools=[box(1), gpu(2)], rate_per_s=15.0), utilisation=0.8))


def joined() -> Plan:
    """A diamond: two branches that meet."""
    split = operator("split", ["camera"], variant("only", {"box": 0.01}, {"left": 10.0, "right": 10.0}))
    left = operator("left", ["split"], variant("only", {"box": 0.02}, {"meet": 10.0}))
    right = operator("right", ["split"], variant("only", {"gpu": 0.03}, {"meet": 10.0}))
    meet = operator("meet", ["left", "right"], variant("only", {"gpu": 0.01}))
    return _solved(replace(problem(split, left, right, meet, pools=[box(2), gpu(2)], rate_per_s=20.0), utilisation=0.8))


def gathering_join(ratio: float = 4.0) -> Plan:
    """What a fan-out put in, beside the children that it made; a quarter of a child is none for most requests."""
    cut = Variant("only", {"box": {1: ServiceTime(0.03, 0.03)}}, {"read": 100.0, "meet": 100.0})
    read = operator(
        "read", [Edge("cut", "read", EdgeKind.FAN_OUT, ratio)], Variant("only", {"gpu": BATCHES}, {"meet": 10.0})
    )
    inputs = ["cut", Edge("read", "meet", EdgeKind.GATHER, 1.0 / ratio)]
    meet = operator("meet", inputs, variant("only", {"gpu": 0.001}))
    cutting = operator("cut", ["camera"], cut)
    return _solved(replace(problem(cutting, read, meet, pools=[box(1), gpu(2)], rate_per_s=15.0), utilisation=0.8))


def _solved(asked: object) -> Plan:
    plan = solve(asked).plan  # type: ignore[arg-type]
    assert plan is not None
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [chain(0.6), chain(0.9), fanned(False), fanned(True), joined(), gathering_join()],
    ids=["chain", "busy chain", "fan-out", "gather", "join", "join that gathers"],
)
def test_its_p99_is_near_that_of_the_exact_one(plan: Plan) -> None:
    exact_s = sorted(simulate_plan(plan, seed=seed).latency_p99_s for seed in range(3))[1]
    coarse_s = sorted(GroupSimulation(plan, seed).slowest_s() for seed in range(3))[1]
    assert coarse_s == pytest.approx(exact_s, rel=0.3)


def test_every_request_is_answered_once() -> None:
    for plan in (chain(0.6), fanned(False), fanned(True), joined(), gathering_join(), gathering_join(0.25)):
        simulation = GroupSimulation(plan, requests=300)
        assert simulation.slowest_s() > 0
        assert 250 <= sum(map(len, simulation.latencies.values())) <= 350


def test_it_repeats_itself() -> None:
    assert GroupSimulation(chain(0.9), 3).slowest_s() == GroupSimulation(chain(0.9), 3).slowest_s()


def test_without_time_nothing_is_known_to_be_in_time() -> None:
    plan = chain(0.9)
    with limited_work(0.0, lambda: 1.0):
        assert GroupSimulation(plan).slowest_s() == math.inf
