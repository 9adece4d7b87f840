"""Ratios by variant: a better detector finds more, and everything after it runs more often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Arrivals,
    Clock,
    Edge,
    EdgeKind,
    Independent,
    Link,
    Network,
    Operator,
    Plan,
    Pool,
    Problem,
    ReplanSettings,
    ServiceTime,
    Slo,
    SolverError,
    Source,
    Variant,
    baselines,
    cost_accuracy,
    evaluate,
    explain,
    replan,
    rescore,
    solve,
)
from jellybean_solver.explanation.restrictions import force_variant
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.model.variant_ratios import plain, settled
from tests.support.simulated_queues import measured

ROWS = {"small": (0.0, 0.0, 1.0), "large": (0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.25)}  # 2 and 4.75 in the mean
RATIOS = {"small": 2.0, "large": 4.75}


def times(edge_s: float, cloud_s: float) -> dict[str, dict[int, ServiceTime]]:
    return {pool: {1: ServiceTime(seconds, seconds)} for pool, seconds in (("box", edge_s), ("gpu", cloud_s))}


def quick(name: str, *downstream: str) -> Variant:
    return Variant(name, times(0.001, 0.001), dict.fromkeys(downstream, 1.0))


def problem(accuracy: float | None = None, rate_per_s: float = 10.0) -> Problem:
    """find -> read (each row) -> count (gathers), and a thumbnail of the same rows."""
    find = tuple(
        Variant(
            name,
            times(0.02, 0.005),
            {"read": 1e4, "thumb": 1e3},
            children=ROWS[name],
            ratios={"read": RATIOS[name], "thumb": RATIOS[name]},
        )
        for name in ROWS
    )
    read = (Variant("fast", times(0.03, 0.01), {"join": 1e3}), Variant("good", times(0.06, 0.02), {"join": 1e3}))
    return Problem(
        name="rows",
        tiers=("edge", "cloud"),
        sources=(Source("camera", "edge", rate_per_s, 1e5),),
        operators=(
            Operator("find", (Edge("camera", "find"),), find),
            Operator("read", (Edge("find", "read", EdgeKind.FAN_OUT),), read),
            Operator("thumb", (Edge("find", "thumb", EdgeKind.FAN_OUT),), (quick("t", "join"),)),
            Operator("join", (Edge("read", "join"), Edge("thumb", "join")), (quick("j", "count"),)),
            Operator("count", (Edge("join", "count", EdgeKind.GATHER),), (quick("c"),)),
        ),
        pools=(Pool("box", "edge", 4, 0.1), Pool("gpu", "cloud", 4, 1.0)),
        links=(Link("edge", "cloud", 0.1, 1e7, 0.01),),
        accuracy=Independent({"find": {"small": 80.0, "large": 95.0}, "read": {"fast": 90.0, "good": 95.0}}),
        slo=Slo(accuracy),
    )  # fmt: skip


def planned(accuracy: float) -> Plan:
    plan = solve(problem(accuracy)).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(("accuracy", "found"), [(75.0, "small"), (85.0, "large")])
def test_a_plan_has_the_rates_and_ratios_of_its_selection(accuracy: float, found: str) -> None:
    plan = planned(accuracy)
    assert plan.selection["find"] == found
    rows = RATIOS[found]
    rates = {operator.name: operator.rate_per_s for operator in plan.operators}
    assert rates == pytest.approx({"find": 10, "read": 10 * rows, "thumb": 10 * rows, "join": 10 * rows, "count": 10})
    ratios = {(edge.upstream, edge.downstream): edge.ratio for operator in plan.operators for edge in operator.inputs}
    assert ratios["find", "read"] == ratios["find", "thumb"] == rows
    assert ratios["join", "count"] == pytest.approx(1 / rows)
    assert evaluate(problem(accuracy), plan).complaints == ()


@pytest.mark.parametrize(("accuracy", "found"), [(75.0, "small"), (85.0, "large")])
def test_simulated_operators_run_as_often_as_planned(accuracy: float, found: str) -> None:
    plan = planned(accuracy)
    seen = measured(plan, duration_s=60.0, warmup_s=5.0, seed=1, arrivals=Arrivals.PERIODIC)
    for operator in plan.operators:
        assert seen.operators[operator.name].requests / 60.0 == pytest.approx(operator.rate_per_s, rel=0.06)
    for worker in plan.workers:
        assert seen.utilisation(worker.name) == pytest.approx(worker.load, abs=0.05)


def test_rates_before_any_choice_are_the_least() -> None:
    whole = problem()
    assert whole.varying == ("find",)
    assert whole.rate_per_s["join"] == 20
    assert plain(whole, max).rate_per_s["join"] == 47.5
    assert plain(whole, max).varying == ()
    assert settled(whole, {"read": "good"}) is whole
    large = settled(whole, {"find": "large", "read": "good"})
    assert [variant.name for variant in large.operator_by_name["find"].variants] == ["large"]
    assert large.rate_per_s["count"] == pytest.approx(10)
    assert force_variant(whole, "find", "large").rate_per_s == large.rate_per_s
    assert Network(whole).demand({"find": "large"}) == Network(large).demand({"find": "large"})


def test_ratios_of_some_variants_only_are_refused() -> None:
    find = problem().operators[0]
    half = replace(find, variants=(find.variants[0], replace(find.variants[1], ratios={})))
    with pytest.raises(SolverError, match="only some variants of find have a ratio to read"):
        replace(problem(), operators=(half, *problem().operators[1:]))


def test_too_many_rows_are_infeasible_with_the_nearest_rate() -> None:
    why = solve(problem(85.0, rate_per_s=200.0)).infeasibility
    assert why is not None and why.nearest_rate_scale is not None
    assert solve(problem(85.0, rate_per_s=200.0 * why.nearest_rate_scale)).status == "optimal"
    assert solve(problem(85.0, rate_per_s=200.0 * why.nearest_rate_scale * 1.001)).status == "infeasible"
    assert why.nearest_accuracy is None or why.nearest_accuracy < 85.0


@pytest.mark.parametrize("accuracy", [None, 75.0, 85.0, 89.0])
def test_the_way_of_large_problems_finds_the_same(accuracy: float | None) -> None:
    expected = solve(problem(accuracy)).plan
    found = cheapest_large(Network(problem(accuracy)), accuracy, fixed=None, gap=0.0, clock=Clock())
    assert expected is not None
    assert found.value == pytest.approx(expected.cost.total_usd_per_h, rel=1e-6)
    assert found.bound == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("ends", [0, 1, 2, 4, 8, 16, 32, 64])
def test_a_search_without_time_states_a_bound_and_no_more(ends: int) -> None:
    ticks = iter(range(1000))
    found = cheapest_large(
        Network(problem(85.0)), 85.0, fixed=None, gap=0.0, clock=Clock(lambda: float(next(ticks)), ends)
    )
    best = planned(85.0).cost.total_usd_per_h
    assert found.bound <= best * (1 + 1e-9)
    assert found.found is None or found.value >= best * (1 - 1e-9)


@pytest.mark.slow
def test_a_deadline_is_kept_at_the_ratios_of_the_plan() -> None:
    loose, tight = solve(problem(75.0), p99_s=5.0).plan, solve(problem(75.0), p99_s=0.25).plan
    assert loose is not None and loose.cost == planned(75.0).cost
    assert tight is not None
    assert evaluate(problem(75.0), tight).complaints == ()
    assert tight.certificate.bound <= tight.cost.total_usd_per_h
    assert simulate_plan(tight, duration_s=40.0).latency_p99_s < 0.3


@pytest.mark.slow
def test_explanations_curve_and_baselines_are_those_of_each_choice() -> None:
    whole = problem(75.0)
    forced = {change.subject: change.cost_usd_per_h for change in explain(whole).choices if change.kind == "variant"}
    for subject, cost in forced.items():
        plan = solve(force_variant(whole, *subject.split("="))).plan
        assert plan is not None and cost == pytest.approx(plan.cost.total_usd_per_h)
    for corner in cost_accuracy(whole).points:
        assert corner.cost_usd_per_h == pytest.approx(planned(corner.x).cost.total_usd_per_h)
    costs = {found.name: found for found in baselines(whole)}
    assert costs["most accurate variants"].selection == {
        "find": "large", "read": "good", "thumb": "t", "join": "j", "count": "c"
    }  # fmt: skip
    assert costs["most accurate variants"].cost_usd_per_h == pytest.approx(planned(90.0).cost.total_usd_per_h, rel=2e-3)


def test_a_running_plan_is_restated_at_its_own_ratios() -> None:
    running = planned(85.0)
    busier, score, wrong = rescore(problem(75.0, rate_per_s=11.0), running)
    assert wrong == ()
    assert busier.operator_by_name["join"].rate_per_s == pytest.approx(11 * 4.75)
    assert score.cost.network_usd_per_h == pytest.approx(1.1 * running.cost.network_usd_per_h)
    found = replan(problem(75.0), running, ReplanSettings())
    assert found.best is not None
    assert found.best.selection["find"] == "small"
