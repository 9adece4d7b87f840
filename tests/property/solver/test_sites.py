"""Alike sites: against enumeration, against the plan without sites, and every worker and link named one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Clock,
    MigrationPrices,
    Network,
    Problem,
    ReplanSettings,
    Slo,
    Solution,
    evaluate,
    from_document,
    replan,
    solve,
    to_document,
)
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.planning.requirements import scaled
from jellybean_solver.planning.solver import finish
from tests import plan_check
from tests.brute_force import optimum
from tests.site_check import complaints
from tests.strategies import problems, with_sites
from tests.support.examples import examples

GIB = 2.0**30

placed = problems(limited=True).flatmap(with_sites)


@settings(max_examples=examples(30, nightly=1500))
@given(placed)
def test_cost_and_feasibility_are_those_of_enumeration(problem: Problem) -> None:
    expected = optimum.cheapest(problem)
    solution = solve(problem, explained=False)
    event(f"{sorted(problem.sites.values())} {solution.status}")

    if expected.cost is None:
        assert solution.status == "infeasible"
        return
    assert solution.plan is not None
    assert solution.plan.cost.total_usd_per_h == pytest.approx(expected.cost, rel=1e-6, abs=1e-6)
    assert evaluate(problem, solution.plan).complaints == ()
    assert complaints(problem, solution.plan) == []
    assert plan_check.complaints(problem, solution.plan) == []
    assert from_document(to_document(solution.plan)) == solution.plan


@settings(max_examples=examples(15, nightly=500))
@given(placed)
def test_fleets_are_bounded_by_enumeration(problem: Problem) -> None:
    """The way of large problems: its bound holds, and its plan is one."""
    expected = optimum.cheapest(problem)
    network = Network(problem)
    assume(all(network.runnable.values()))
    outcome = cheapest_large(network, problem.slo.accuracy, fixed=None, gap=0.0, clock=Clock())
    if expected.cost is not None:
        assert outcome.bound <= expected.cost * (1 + 1e-6) + 1e-6
    if outcome.found is not None:
        assert expected.cost is not None
        plan, score = finish(network, outcome)
        assert plan.cost.total_usd_per_h >= expected.cost * (1 - 1e-6) - 1e-6
        assert score.violations == ()
        assert complaints(problem, plan) == []


@settings(max_examples=examples(12, nightly=300))
@given(problems(limited=True))
def test_one_site_is_no_site(problem: Problem) -> None:
    """Plans may differ if several cost the same, as searches run side by side: each must be the other problem's too."""
    with_one = replace(problem, sites=dict.fromkeys(problem.tiers, 1))
    alone, one = solve(problem), solve(with_one)

    assert one.status == alone.status
    for plan in (one.plan, alone.plan):
        if plan is not None:
            assert plan.cost.total_usd_per_h == pytest.approx(_cost(alone), rel=1e-6, abs=1e-6)
            assert evaluate(with_one, plan) == evaluate(problem, plan)
            assert evaluate(problem, plan).complaints == ()
            assert plan.sites == {}
    if alone.infeasibility is not None and alone.infeasibility.refused is None:
        assert one.infeasibility == alone.infeasibility


def _cost(solution: Solution) -> float:
    assert solution.plan is not None
    return solution.plan.cost.total_usd_per_h


@settings(max_examples=examples(12, nightly=300))
@given(problems(limited=True), st.integers(2, 1000))
def test_everything_in_sites_costs_as_many_times(problem: Problem, sites: int) -> None:
    one, many = solve(problem, explained=False), solve(replace(problem, sites=dict.fromkeys(problem.tiers, sites)))

    assert (one.plan is None) == (many.plan is None)
    if one.plan is not None and many.plan is not None:
        assert many.plan.cost.total_usd_per_h == pytest.approx(sites * one.plan.cost.total_usd_per_h, rel=1e-6)


@settings(max_examples=examples(12, nightly=300))
@given(problems(limited=True, max_operators=3), st.integers(2, 50), st.sampled_from((0.5, 1.0, 2.0)))
def test_going_on_costs_as_many_times_too(problem: Problem, sites: int, scale: float) -> None:
    """Alike sites change alike: what one loads, all load."""
    terms = ReplanSettings(MigrationPrices(0.1, 0.2 * GIB), 4.0, 0.02)
    everywhere = dict.fromkeys(problem.tiers, sites)
    before = solve(scaled(problem, scale), explained=False).plan
    assume(before is not None)
    assert before is not None
    many_before = solve(replace(scaled(problem, scale), sites=everywhere), explained=False).plan
    assert many_before is not None
    assume(many_before.routes == before.routes)  # ties may be broken in another way

    one, many = replan(problem, before, terms), replan(replace(problem, sites=everywhere), many_before, terms)

    assert many.verdict is one.verdict
    event(one.verdict.value)
    if one.best is not None and many.best is not None and one.migration is not None and many.migration is not None:
        total = one.best.cost.total_usd_per_h * 4.0 + one.migration.total_usd
        assert many.best.cost.total_usd_per_h * 4.0 + many.migration.total_usd == pytest.approx(sites * total, rel=1e-5)


@settings(max_examples=examples(10, nightly=200))
@given(placed, placed.map(lambda other: other.sites))
def test_going_on_with_other_numbers_of_sites(problem: Problem, other: dict[str, int]) -> None:
    """The assignment's cost of moving is that of the two plans, or `finish` would refuse it."""
    sites = {tier: other.get(tier, 1) for tier in problem.tiers}
    before = solve(replace(problem, sites=sites, slo=Slo()), explained=False).plan
    assume(before is not None)
    assert before is not None
    found = replan(problem, before, ReplanSettings(MigrationPrices(0.1, 0.2 * GIB), 4.0, 0.02))
    if found.best is not None:
        assert complaints(problem, found.best) == []
