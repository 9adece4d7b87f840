"""Which jobs of a request count in a lower bound on the p99 latency, against hand-worked workflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Clock,
    Deadline,
    Edge,
    EdgeKind,
    Operator,
    Plan,
    Pool,
    Problem,
    ServiceTime,
    Slo,
    SolveOptions,
    Source,
    combine_workflows,
    least_latency_s,
    solve,
)
from jellybean_solver.deadline.lower_bound import least_cost_in_time
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.guaranteed_jobs import guaranteed_jobs, least_run_s
from jellybean_solver.planning.solve import solve_with
from tests.support.small_problems import box, operator, problem, variant

SECOND = 1.0
RARE_PER_S = 1e-5  # requests never wait for others


def fan_out(upstream: str, downstream: str, ratio: float) -> Edge:
    return Edge(upstream, downstream, EdgeKind.FAN_OUT, ratio)


def gather(upstream: str, downstream: str, ratio: float) -> Edge:
    return Edge(upstream, downstream, EdgeKind.GATHER, 1.0 / ratio)


def step(name: str, *inputs: str | Edge, to: Sequence[str] = (), seconds: float = SECOND) -> Operator:
    return operator(name, inputs, variant("v", {"box": seconds}, dict.fromkeys(to, 0.0)))


def workflow(*operators: Operator) -> Problem:
    return problem(*operators, pools=[box(9)], rate_per_s=RARE_PER_S)


def with_children(made: Problem, name: str, *shares: float) -> Problem:
    def own(one: Operator) -> Operator:
        variants = tuple(replace(v, children=shares) for v in one.variants)
        return replace(one, variants=variants) if one.name == name else one

    return replace(made, operators=tuple(map(own, made.operators)))


@pytest.mark.parametrize(
    ("ratio", "jobs"), [(0.005, 0.0), (0.02, 0.0), (0.05, 1.0), (0.9, 1.0), (1.05, 1.0), (1.2, 1.2), (4.0, 4.0)]
)
def test_an_operator_counts_if_more_than_one_percent_of_the_requests_visit_it(ratio: float, jobs: float) -> None:
    made = workflow(step("first", "camera", to=["rare"]), step("rare", fan_out("first", "rare", ratio)))
    assert guaranteed_jobs(made) == {"first": 1.0, "rare": jobs}
    assert least_latency_s(made) == pytest.approx(1.0 + jobs)
    plan = solve(made).plan
    assert plan is not None
    assert least_latency_s(made) <= simulate_plan(plan).latency_p99_s + 1e-9


def test_a_chain_of_rare_children_is_rarer() -> None:
    made = workflow(
        step("first", "camera", to=["half"]),
        step("half", fan_out("first", "half", 0.5), to=["rare"]),
        step("rare", fan_out("half", "rare", 0.01)),
    )
    assert guaranteed_jobs(made) == {"first": 1.0, "half": 1.0, "rare": 0.0}


def test_many_children_of_few_requests_do_not_count() -> None:
    """A mean of two children tells nothing of the p99 where one request of 200 has 400."""
    made = workflow(step("first", "camera", to=["rare"]), step("rare", fan_out("first", "rare", 2.0)))
    made = with_children(made, "first", 0.995, *[0.0] * 399, 0.005)
    assert guaranteed_jobs(made) == {"first": 1.0, "rare": 0.0}
    made = with_children(made, "first", 0.8, *[0.0] * 9, 0.2)
    assert guaranteed_jobs(made) == {"first": 1.0, "rare": 2.0}, "at most the mean"


def test_what_follows_the_gather_of_rare_children_counts() -> None:
    made = workflow(
        step("first", "camera", to=["rare", "last"]),
        step("rare", fan_out("first", "rare", 0.004), to=["all"]),
        step("all", gather("rare", "all", 0.004), to=["last"]),
        step("last", "first", "all"),
    )
    assert guaranteed_jobs(made) == {"first": 1.0, "rare": 0.0, "all": 1.0, "last": 1.0}
    plan = solve(made).plan
    assert plan is not None
    assert least_latency_s(made) == pytest.approx(simulate_plan(plan).latency_p99_s) == pytest.approx(3.0)


@pytest.mark.slow
def test_children_are_processed_in_a_pipeline() -> None:
    """Only the slowest operator below a fan-out counts for all children: 1 + 1 + 4 * 2 seconds, not 1 + 4 + 8."""
    made = workflow(
        step("first", "camera", to=["cut"]),
        step("cut", fan_out("first", "cut", 4.0), to=["read"]),
        step("read", "cut", seconds=2.0),
    )
    made = replace(made, pools=(replace(box(9), memory_bytes=1.0),))  # one model on each worker
    models = (replace(one, variants=(replace(one.variants[0], memory_bytes={"box": 1.0}),)) for one in made.operators)
    made = replace(made, operators=tuple(models))
    assert guaranteed_jobs(made) == {"first": 1.0, "cut": 1.0, "read": 4.0}
    plan = solve(made).plan
    assert plan is not None and len(plan.workers) == 3
    assert least_latency_s(made) == pytest.approx(10.0) == pytest.approx(simulate_plan(plan).latency_p99_s)


def test_plans_that_mix_variants_spread_children_over_workers() -> None:
    made = workflow(step("first", "camera", to=["read"]), step("read", fan_out("first", "read", 4.0)))
    assert guaranteed_jobs(replace(made, slo=Slo(mean_accuracy=50.0))) == {"first": 1.0, "read": 1.0}


def test_a_source_of_few_of_the_requests_does_not_count() -> None:
    made = workflow(step("common", "camera"), step("rare", "clock", seconds=50.0))
    clock = Source("clock", "edge", 0.005 * RARE_PER_S, 0.0)
    made = replace(made, sources=(*made.sources, clock))
    assert guaranteed_jobs(made) == {"common": 1.0, "rare": 0.0}
    assert least_latency_s(made) == pytest.approx(1.0)
    often = replace(made, sources=(made.sources[0], replace(clock, rate_per_s=0.1 * RARE_PER_S)))
    assert least_latency_s(often) == pytest.approx(50.0)


def test_shares_are_of_each_workflow() -> None:
    rare = replace(workflow(step("slow", "camera", seconds=50.0)), slo=Slo(latency_p99_s=60.0))
    rare = replace(rare, sources=(replace(rare.sources[0], rate_per_s=1e-3 * RARE_PER_S),))
    common = replace(workflow(step("fast", "camera")), slo=Slo(latency_p99_s=60.0))
    assert guaranteed_jobs(combine_workflows("two", {"a": rare, "b": common})) == {"a/slow": 1.0, "b/fast": 1.0}


def test_the_least_time_is_that_of_the_fastest_batches_and_samples() -> None:
    times = {1: ServiceTime(3.0, 3.0), 2: ServiceTime(4.0, 4.0), 4: ServiceTime(8.4, 8.4)}
    assert [least_run_s(times, jobs) for jobs in (0.0, 1.0, 4.0)] == [0.0, 3.0, 8.0]
    varied = {1: ServiceTime(1.0, 1.0, ((0.5, 1.0), (1.0, 7.0)))}  # a mean of 2.5 times the median
    assert least_run_s(varied, 1.0) == pytest.approx(0.4)


def test_neither_refusals_nor_bounds_on_cost_count_what_few_requests_visit() -> None:
    """The rare operator takes 1 s in a cheap pool and 0.2 s in a dear one; by simulation each plan's p99 is 1 s."""
    made = workflow(step("first", "camera", to=["rare"]), step("rare", fan_out("first", "rare", 0.005)))
    dear = Pool("dear", "edge", 1, 5.0)
    rare = replace(made.operators[1], variants=(variant("v", {"box": 1.0, "dear": 0.2}),))
    made = replace(made, operators=(made.operators[0], rare), pools=(*made.pools, dear))

    def judge(plan: Plan) -> float:
        return simulate_plan(plan).latency_p99_s / 1.5

    found = solve_with(made, SolveOptions(deadline=Deadline(1.5, judge=judge))).plan
    assert found is not None
    assert found.cost.total_usd_per_h == pytest.approx(1.0)
    limits = SearchLimits(0.0, Clock(), math.inf)
    assert least_cost_in_time(made, 1.5, found, limits) <= found.cost.total_usd_per_h
