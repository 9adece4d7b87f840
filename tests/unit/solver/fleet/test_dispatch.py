"""Large problems: one joint program, never a proof that is none."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks.fleet import Size, fleet
from jellybean_solver import (
    AccuracyRow,
    Independent,
    Network,
    PerOperator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    SolverError,
    is_large,
    solve,
)
from tests.plan_check import complaints
from tests.support.small_problems import box, operator, problem, variant

SMALL = Size(operators=6, variants=4, pools=70, workers=500)


def _many_pools(pools: int, **changes: object) -> Problem:
    """Two models that do not fit together on the cheap worker, and many dear ones."""
    fleet_of = [Pool("p0", "edge", 1, 0.1, memory_bytes=3.0)]
    fleet_of += [Pool(f"p{i}", "edge", 1, 1.0, memory_bytes=3.0) for i in range(1, pools)]
    loads = {pool.name: 0.01 for pool in fleet_of}
    sizes = {pool.name: 2.0 for pool in fleet_of}
    case = problem(
        operator("a", ["camera"], variant("v", loads, {"b": 0.0}, sizes)),
        operator("b", ["a"], variant("v", loads, {}, sizes)),
        pools=fleet_of,
        rate_per_s=1.0,
    )
    return replace(case, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("pools", [199, 201])
def test_the_same_plan_on_both_sides_of_the_threshold(pools: int) -> None:
    case = _many_pools(pools)
    plan = solve(case).plan
    assert is_large(Network(case)) == (pools == 201)
    assert plan is not None
    assert plan.cost.total_usd_per_h == pytest.approx(1.1)
    assert complaints(case, plan) == []


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_fleet_is_planned_to_the_gap(sharing: Sharing) -> None:
    case = fleet(1, replace(SMALL, sharing=sharing))
    solution = solve(case, gap=0.05)
    assert solution.plan is not None
    assert solution.status in ("optimal", "gap")
    assert solution.plan.certificate.gap <= 0.06
    assert complaints(case, solution.plan) == []
    assert solution.plan.accuracy is not None
    assert solution.plan.accuracy >= (case.slo.accuracy or 0.0) - 1e-6


def test_time_that_ends_at_once_proves_nothing() -> None:
    ticks = itertools.count(0.0, 1.0)
    with pytest.raises(SolverError, match="allow more time"):
        solve(fleet(1, SMALL), time_limit_s=1e-3, clock=lambda: next(ticks))


@pytest.mark.slow
def test_a_budget_around_the_gap_is_kept_or_refused_with_a_proof() -> None:
    case = fleet(1, SMALL)
    loose = solve(case, gap=0.05)
    assert loose.plan is not None
    best = solve(case, gap=1e-4)
    assert best.plan is not None
    budget = best.plan.cost.total_usd_per_h + 1e-6
    kept = solve(replace(case, slo=replace(case.slo, budget_usd_per_h=budget)), gap=0.05)
    assert kept.plan is not None
    assert kept.plan.cost.total_usd_per_h <= budget + 1e-6
    tight = replace(case, slo=replace(case.slo, budget_usd_per_h=0.5 * best.plan.certificate.bound))
    assert solve(tight).status == "infeasible"


@pytest.mark.slow
def test_infeasible_names_what_stands_in_the_way() -> None:
    case = fleet(1, SMALL)
    solution = solve(replace(case, slo=Slo(accuracy=99.999)))
    assert solution.status == "infeasible"
    assert solution.infeasibility is not None
    assert (
        "a plan was found without the accuracy target of 99.999, all else unchanged"
        in solution.infeasibility.reasons[0]
    )


def test_points_that_fall_are_read_alike_by_search_and_program() -> None:
    """A noisy table: more accurate inputs, worse output. The measured point counts, in both ways of solving."""
    rows = (AccuracyRow((70.0,), 60.0), AccuracyRow((90.0,), 58.0))
    tables = {"a": {"v": (AccuracyRow((), 90.0),), "w": (AccuracyRow((), 80.0),)}, "b": {"v": rows}}
    model = PerOperator({"a": (), "b": ("a",)}, tables)
    for pools in (190, 201):
        case = _many_pools(pools, accuracy=model)
        first, second = case.operators
        dear = replace(first.variants[0], name="w", service={"p1": {1: ServiceTime(0.5, 0.5)}})
        both = replace(case, operators=(replace(first, variants=(*first.variants, dear)), second))
        plan = solve(replace(both, slo=Slo(accuracy=59.0))).plan
        assert plan is not None
        assert (plan.selection["a"], plan.accuracy) == ("w", 60.0)
        assert solve(replace(both, slo=Slo(accuracy=60.5))).plan is None


def test_variants_without_a_percentage_are_not_chosen() -> None:
    table = {"a": {"known": 90.0}}
    step = operator("a", ["camera"], variant("unknown", {"box": 0.001}), variant("known", {"box": 0.01}))
    small = problem(step, pools=[box(3)], accuracy=Independent(table), slo=Slo(accuracy=0.0))
    pools = [box(3), *(Pool(f"p{i}", "edge", 1, 9.0) for i in range(401))]
    for case in (small, replace(small, pools=tuple(pools))):
        plan = solve(case).plan
        assert plan is not None
        assert plan.selection == {"a": "known"}
