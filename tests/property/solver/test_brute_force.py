"""The solver against enumeration, on random small problems, infeasible ones included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings

from jellybean_solver import (
    Edge,
    Independent,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
    evaluate,
    from_document,
    solve,
    to_document,
)
from jellybean_solver.planning.requirements import scaled
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.strategies import more_workers, problems, with_device_memory, with_ratios
from tests.support.examples import examples
from tests.vqa_medium import vqa_problem


@settings(max_examples=examples(60, nightly=2000))
@given(problems(limited=True))
def test_with_memory_bandwidth_and_residency_too(problem: Problem) -> None:
    test_solver_equals_brute_force.hypothesis.inner_test(problem)  # type: ignore[attr-defined]


@settings(max_examples=examples(40, nightly=2000))
@given(problems(limited=True).flatmap(with_device_memory))
def test_with_two_memories_too(problem: Problem) -> None:
    test_solver_equals_brute_force.hypothesis.inner_test(problem)  # type: ignore[attr-defined]


@settings(max_examples=examples(60, nightly=1500))
@given(problems())
def test_solver_equals_brute_force(problem: Problem) -> None:
    expected = optimum.cheapest(problem)
    solution = solve(problem)
    event(solution.status)

    if expected.cost is None:
        assert solution.status == "infeasible"
        assert solution.plan is None
        assert solution.infeasibility is not None
        assert solution.infeasibility.reasons
        return
    assert solution.status == "optimal"
    assert solution.plan is not None
    assert solution.plan.cost.total_usd_per_h == pytest.approx(expected.cost, rel=1e-6, abs=1e-6)
    assert solution.plan.certificate.gap == 0
    assert solution.plan.certificate.termination == "optimal"
    assert evaluate(problem, solution.plan).complaints == ()
    assert complaints(problem, solution.plan) == []
    assert from_document(to_document(solution.plan)) == solution.plan


@settings(max_examples=examples(20, nightly=500))
@given(problems(strained=True) | problems(strained=True, fanned=True).flatmap(with_ratios))
def test_nearest_targets_are_feasible_and_nothing_beyond_them_is(problem: Problem) -> None:
    infeasibility = solve(problem).infeasibility
    assume(infeasibility is not None)
    assert infeasibility is not None
    accuracy, scale = infeasibility.nearest_accuracy, infeasibility.nearest_rate_scale
    event(f"accuracy {accuracy is not None}, rates {scale is not None}")

    if problem.slo.accuracy is not None:
        expected = optimum.best_feasible_accuracy(problem)
        assert accuracy == (None if expected is None else pytest.approx(expected, abs=1e-9))
    if accuracy is not None:
        assert solve(replace(problem, slo=Slo(accuracy=accuracy))).status == "optimal"
        assert solve(replace(problem, slo=Slo(accuracy=accuracy + 1e-3))).status == "infeasible"
    if scale is not None:
        assert optimum.cheapest(scaled(problem, scale)).cost is not None
        assert optimum.cheapest(scaled(problem, scale * (1 + 1e-4))).cost is None
    else:
        assert optimum.cheapest(scaled(problem, 1e-4)).cost is None


@settings(max_examples=examples(12, nightly=300))
@given(problems() | problems(fanned=True).flatmap(with_ratios))
def test_budget_is_a_real_limit(problem: Problem) -> None:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    assume(plan.cost.total_usd_per_h > 0.01)
    budget = 0.9 * plan.cost.total_usd_per_h
    tight = replace(problem, slo=replace(problem.slo, budget_usd_per_h=budget))

    solution = solve(tight)

    assert solution.status == "infeasible"
    assert solution.infeasibility is not None
    assert solution.infeasibility.breaches
    scale, accuracy = solution.infeasibility.nearest_rate_scale, solution.infeasibility.nearest_accuracy
    if scale is not None:
        best = optimum.cheapest(scaled(problem, scale)).cost
        assert best is not None
        assert best <= budget * (1 + 1e-6)
        beyond = optimum.cheapest(scaled(problem, scale * (1 + 1e-3))).cost
        assert beyond is not None
        assert beyond > budget
    if problem.slo.accuracy is not None:
        affordable = [
            value
            for selection in optimum.selections(problem)
            if (value := optimum.accuracy(problem, selection)) is not None
            and (cost := optimum.cheapest_of_larger(problem, selection)) is not None
            and cost <= budget * (1 + 1e-9)
        ]
        assert accuracy == (pytest.approx(max(affordable), abs=1e-9) if affordable else None)


@settings(max_examples=examples(15, nightly=400))
@given(problems())
def test_more_workers_never_cost_more(problem: Problem) -> None:
    before, after = solve(problem), solve(more_workers(problem))

    if before.plan is not None:
        assert after.plan is not None
        assert after.plan.cost.total_usd_per_h <= before.plan.cost.total_usd_per_h * (1 + 1e-9) + 1e-9


RATES_PER_S = (10.0, *(pytest.param(rate, marks=pytest.mark.nightly) for rate in (40.0, 80.0)))
ACCURACIES = (54.0, 55.5, 56.0, 57.0, 58.0, 58.3)


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("rate_per_s", RATES_PER_S)
def test_published_instance_against_brute_force(rate_per_s: float, sharing: Sharing) -> None:
    costs = _published_costs(rate_per_s, sharing)

    for target in ACCURACIES:
        solution = solve(vqa_problem(rate_per_s, target, sharing))
        allowed = [cost for accuracy, cost in costs if accuracy >= target and cost is not None]
        if allowed:
            assert solution.plan is not None
            assert solution.plan.cost.total_usd_per_h == pytest.approx(min(allowed), rel=1e-6)
        else:
            assert solution.status == "infeasible"


def _published_costs(rate_per_s: float, sharing: Sharing) -> Sequence[tuple[float, float | None]]:
    problem = vqa_problem(rate_per_s, None, sharing)
    oracle = optimum.cheapest_of if sharing is Sharing.SHARED else optimum.cheapest_of_larger
    return [
        (optimum.accuracy(problem, selection) or 0.0, oracle(problem, selection))
        for selection in optimum.selections(problem)
    ]


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize("rate_per_s", [1e-9, 4e-6, 1e-3])
def test_rates_next_to_nothing_are_served_by_the_cheapest_worker(sharing: Sharing, rate_per_s: float) -> None:
    """Loads near the program solver's tolerance once hid the cheap pool from it."""
    slow, fast = ({1: ServiceTime(time_s, time_s)} for time_s in (0.2, 0.02))
    operator = Operator("o", (Edge("s", "o"),), (Variant("v", {"dear": slow, "cheap": fast}, {}),))
    problem = Problem(
        name="idle",
        tiers=("edge",),
        sources=(Source("s", "edge", rate_per_s, 10.0),),
        operators=(operator,),
        pools=(Pool("dear", "edge", 2, 2.5, sharing), Pool("cheap", "edge", 1, 0.1, sharing)),
        links=(),
        accuracy=Independent({"o": {"v": 99.0}}),
    )
    found = solve(problem)
    assert found.plan is not None
    assert found.plan.cost.total_usd_per_h == pytest.approx(0.1)
    assert found.certificate is not None
    assert found.certificate.bound == pytest.approx(0.1)
