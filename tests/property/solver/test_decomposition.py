"""Workflows planned one by one at prices, against enumeration."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import event, given, settings

from benchmarks.unlike.sites import unlike_sites
from benchmarks.unlike.workflows import many_workflows
from jellybean_solver import (
    DEFAULT_GAP,
    Clock,
    ReplanSettings,
    SearchSettings,
    Verdict,
    combine_workflows,
    evaluate,
    has_many_workflows,
    replan,
)
from jellybean_solver.decomposition.search import decompose
from jellybean_solver.decomposition.settings import DEFAULT_DECOMPOSITION, DecompositionSettings
from jellybean_solver.decomposition.split import split
from jellybean_solver.planning.many_workflows import solve_many
from jellybean_solver.planning.requirements import scaled
from tests.plan_check import complaints
from tests.property.solver.test_together import cheapest_pair
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import Pair, pairs

GAP = 0.01
NEAR = 1e-6  # of a cost
SAMPLED = replace(DEFAULT_DECOMPOSITION, few=4, sample=4)  # few workflows, as if they were many


def _is_between(pair: Pair, how: DecompositionSettings) -> None:
    """Bound <= optimum <= cost, by enumeration; a plan is one that an independent checker agrees with."""
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    expected = cheapest_pair(pair, both)
    found = decompose(split(both), GAP, Clock(), how)
    event(f"plan {found.plan is not None}, optimum {expected is not None}")
    if found.impossible:
        assert expected is None
    least = math.inf if expected is None else expected
    assert found.bound <= least + NEAR * max(1.0, abs(least) if math.isfinite(least) else 1.0)
    if found.plan is not None:
        assert expected is not None
        assert found.cost >= expected - NEAR * max(1.0, expected)
        assert complaints(both, found.plan) == []
        evaluation = evaluate(both, found.plan)
        assert evaluation.violations == ()
        assert evaluation.cost.total_usd_per_h == pytest.approx(found.cost, rel=1e-6, abs=1e-6)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=500))
@given(pairs())
def test_the_optimum_of_two_lies_between_bound_and_cost(pair: Pair) -> None:
    _is_between(pair, DEFAULT_DECOMPOSITION)


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=500))
@given(pairs(limited=True))
def test_with_memory_bandwidth_and_residency_too(pair: Pair) -> None:
    _is_between(pair, replace(DEFAULT_DECOMPOSITION, few=1, sample=2))


@pytest.mark.parametrize(("sites", "how"), [(6, DEFAULT_DECOMPOSITION), (12, SAMPLED)])
def test_plans_of_unlike_sites_are_sound_and_near_their_bound(sites: int, how: DecompositionSettings) -> None:
    problem = unlike_sites(3, sites, operators=4, variants=3, cloud=2)
    found = decompose(split(problem), 0.02, Clock(), how)
    assert found.plan is not None
    assert complaints(problem, found.plan) == []
    assert evaluate(problem, found.plan).complaints == ()
    assert 0 < found.bound <= found.cost


def test_plans_of_unlike_workflows_are_sound_and_within_the_gap() -> None:
    problem = many_workflows(1, 16, 800, variants=3)
    solution = solve_many(problem, 0.03, Clock(), explained=True)
    assert solution.plan is not None
    assert solution.certificate is not None
    assert solution.certificate.gap <= 0.03
    assert complaints(problem, solution.plan) == []


def test_what_lacks_is_said() -> None:
    problem = unlike_sites(2, 6, operators=4, variants=3, cloud=2)
    crowded = solve_many(scaled(problem, 40.0), None, Clock(), explained=True)
    assert crowded.plan is None
    assert crowded.infeasibility is not None
    assert any("s0" in reason or "workflows" in reason for reason in crowded.infeasibility.reasons)
    hopeless = replace(
        problem,
        workflows=tuple(replace(w, slo=replace(w.slo, accuracy=99.99)) for w in problem.workflows[:1])
        + problem.workflows[1:],
    )
    refused = solve_many(hopeless, None, Clock(), explained=True)
    assert refused.infeasibility is not None
    assert refused.infeasibility.reasons[0].startswith("s0: ")


def test_a_budget_that_is_too_small_is_a_reason_and_the_refused_plan_is_shown() -> None:
    problem = unlike_sites(3, 6, operators=4, variants=3, cloud=2)
    plan = solve_many(problem, None, Clock(), explained=True).plan
    assert plan is not None
    slo = replace(problem.slo, budget_usd_per_h=plan.cost.total_usd_per_h * 0.5)
    refused = solve_many(replace(problem, slo=slo), None, Clock(), explained=True)
    assert refused.status == "infeasible"
    assert refused.infeasibility is not None
    assert refused.infeasibility.refused is not None
    assert refused.infeasibility.breaches


@pytest.mark.slow
def test_a_running_plan_is_kept_unless_a_new_one_saves_enough() -> None:
    problem = unlike_sites(3, 18, operators=6, variants=4, cloud=5)
    assert has_many_workflows(problem)
    loose = SearchSettings(gap=0.3)
    plan = solve_many(problem, loose.gap, Clock(), explained=True).plan
    assert plan is not None
    same = replan(problem, plan, ReplanSettings(least_saved_share=0.3), loose)
    assert same.verdict is Verdict.KEEP
    assert same.broken == ()
    assert same.bound_usd <= same.running_usd
    exact = replan(problem, plan, ReplanSettings(least_saved_share=0.3), SearchSettings(gap=DEFAULT_GAP))
    assert exact.best is not None
    assert exact.best.certificate.gap <= DEFAULT_GAP, "the gap that is stated, even if it is another one's default"
    quiet = scaled(problem, 0.3)
    fewer = replan(quiet, plan, ReplanSettings(), loose)
    assert fewer.verdict is Verdict.REPLACE
    assert fewer.best is not None
    assert complaints(quiet, fewer.best) == []
