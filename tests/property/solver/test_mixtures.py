"""Plans that mix variants against one program over everything: cost, mean accuracy, bounds, and what workers can do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    LossKind,
    Objective,
    Problem,
    Slo,
    Terms,
    evaluate,
    from_document,
    losses,
    plan_after,
    solve,
    to_document,
)
from jellybean_solver.model.loss import REHEARSED, RoutesAfterLoss
from tests import plan_check
from tests.brute_force import mixture_optimum
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples

LITTLE = 1e-6
MIX_GAP = 2e-4  # relative: programs are solved to 1e-4, and the reference to its own tolerances


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(30, nightly=1000))
@given(
    problems(max_operators=3, limited=True),
    st.sampled_from((55.0, 70.0, 80.0, 88.0, 95.0)),
    st.sampled_from((None, 60.0)),
    st.sampled_from((None, None, 0.01, 0.3)),
)
def test_the_cheapest_mixture_is_that_of_one_program_over_everything(
    problem: Problem, mean: float, least: float | None, penalty: float | None
) -> None:
    asked = replace(problem, slo=Slo(accuracy=least, mean_accuracy=mean, penalty_usd_per_h=penalty))
    expected = mixture_optimum.best(asked, most_accurate=False)
    solution = solve(asked, explained=False)
    event(f"{solution.status}, mixes {solution.plan is not None and solution.plan.mixes}")

    assert (solution.plan is None) == (expected is None)
    if solution.plan is None or expected is None:
        return
    plan = solution.plan
    cost = plan.cost.total_usd_per_h + (penalty or 0.0) * max(0.0, mean - (plan.accuracy or 0.0))
    assert not evaluate(asked, plan).complaints
    assert not plan_check.complaints(asked, plan)
    assert from_document(to_document(plan)) == plan
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert cost >= expected * (1 - LITTLE) - LITTLE
    if plan.certificate.is_optimal:
        assert cost == pytest.approx(expected, rel=MIX_GAP, abs=1e-5)
    single = solve(replace(asked, slo=Slo(accuracy=max(mean, least or 0.0))), explained=False).plan
    if single is not None:
        assert plan.certificate.bound <= single.cost.total_usd_per_h * (1 + LITTLE) + LITTLE


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(30, nightly=1000))
@given(problems(max_operators=3, limited=True), st.sampled_from((None, 0.5, 2.0, 6.0)))
def test_the_highest_mean_accuracy_is_that_of_one_program_over_everything(
    problem: Problem, budget: float | None
) -> None:
    asked = replace(problem, slo=Slo(budget_usd_per_h=budget), objective=Objective.MEAN_ACCURACY)
    expected = mixture_optimum.best(asked, most_accurate=True)
    solution = solve(asked, explained=False)
    event(f"{solution.status}, mixes {solution.plan is not None and solution.plan.mixes}")

    assert (solution.plan is None) == (expected is None)
    if solution.plan is None or expected is None:
        return
    plan, proof = solution.plan, solution.plan.certificate
    assert plan.accuracy is not None
    assert not evaluate(asked, plan).complaints
    assert not plan_check.complaints(asked, plan)
    assert proof.objective_of is Objective.MEAN_ACCURACY
    assert plan.accuracy <= expected + 1e-3
    assert proof.bound >= expected - 1e-3
    if proof.is_optimal:
        assert plan.accuracy == pytest.approx(expected, abs=1e-2)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(30, nightly=1000))
@given(
    problems(max_operators=2, limited=True),
    st.sampled_from((None, 60.0, 80.0)),
    st.booleans(),
    st.lists(st.sampled_from(LossKind), min_size=1, max_size=3, unique=True),
    st.sampled_from((None, None, 0.02)),
)
def test_the_cheapest_plan_that_bears_losses_is_that_of_one_program_over_everything(
    problem: Problem, target: float | None, mixed: bool, kinds: list[LossKind], penalty: float | None
) -> None:
    survives = tuple(kinds)
    slo = Slo(accuracy=target, survives=survives)
    if mixed and target is not None:
        slo = Slo(mean_accuracy=target, survives=survives, penalty_usd_per_h=penalty)
    terms = [Terms.SPOT if number % 2 else Terms.ON_DEMAND for number in range(len(problem.pools))]
    roomy = tuple(  # else few have such a plan
        replace(pool, count=2 * pool.count + 1, terms=own) for pool, own in zip(problem.pools, terms, strict=True)
    )
    asked = replace(problem, slo=slo, pools=roomy)
    expected = mixture_optimum.best(asked, most_accurate=False)
    solution = solve(asked, explained=False)
    fallbacks = 0 if solution.plan is None else sum(bool(one.weights) for one in solution.plan.fallbacks)
    event(f"{solution.status}, mixes {solution.plan is not None and solution.plan.mixes}, fallbacks {fallbacks > 0}")
    assert (solution.plan is None) == (expected is None)
    if solution.plan is None or expected is None:
        return
    plan = solution.plan
    cost = plan.cost.total_usd_per_h + slo.penalty(plan.accuracy)
    assert not evaluate(asked, plan).complaints
    assert from_document(to_document(plan)) == plan
    for loss in losses(plan, survives):
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert RoutesAfterLoss(asked, left).closed(loss) == ()
        assert not plan_check.complaints(asked, left)
    rehearsed = 100.0 * REHEARSED * (slo.penalty_usd_per_h or 0.0) if fallbacks else 0.0  # they may be more accurate
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert cost >= expected * (1 - LITTLE) - LITTLE - rehearsed
    if plan.certificate.is_optimal:
        assert cost == pytest.approx(expected, rel=MIX_GAP, abs=1e-5 + rehearsed)
    assert cost <= expected * 1.01 + 1e-3  # a few requests rehearse the fallbacks, whose traffic may cost more
