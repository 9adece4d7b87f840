"""Objectives and curves of several workflows together, against one program over everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    MovedTargets,
    Objective,
    Plan,
    Problem,
    Slo,
    combine_workflows,
    cost_accuracy,
    cost_mean_accuracy,
    evaluate,
    from_document,
    solve,
    to_document,
)
from tests.brute_force import mixture_optimum
from tests.property.solver.test_mixed_together import measured
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import pairs

LITTLE = 1e-6
LEVELS = (60.0, 70.0, 90.0, 100.0)  # those of `measured` are 70 and 100

Case = tuple[Problem, dict[str, Problem]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Two workflows together, and one by one, on a fleet that may be scarce."""
    pair = draw(pairs(limited=draw(st.booleans())))
    more = draw(st.sampled_from((0, 1)))
    pools = tuple(replace(pool, count=2 * pool.count + more) for pool in pair[0].pools)
    problems = {
        name: replace(measured(one), slo=Slo(), pools=pools) for name, one in zip(("a", "b"), pair, strict=True)
    }
    return combine_workflows("both", problems, draw(st.sampled_from((None, None, 1.0, 4.0)))), problems


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(12, nightly=600))
@given(cases(), st.sampled_from((None, None, 0.5)), st.sampled_from((None, None, 0.2, 5.0)))
def test_the_highest_mean_over_workflows_is_that_of_one_program_over_everything(
    case: Case, least: float | None, worth: float | None
) -> None:
    free, parts = case
    floor = Slo(accuracy=None if least is None else 80.0)
    parts = {name: replace(part, slo=floor if name == "b" else Slo()) for name, part in parts.items()}
    both = combine_workflows("both", {n: replace(p, objective=Objective.MEAN_ACCURACY) for n, p in parts.items()})
    workflows = tuple(replace(one, worth_usd_per_h=worth if one.name == "a" else None) for one in both.workflows)
    both = replace(both, slo=free.slo, workflows=workflows)
    expected = mixture_optimum.most_accurate_of_several(both, parts)
    solution = solve(both, explained=False)
    event(f"{solution.status}, leaves out {solution.plan is not None and bool(solution.plan.left_out)}")
    assert (solution.plan is None) == (expected is None)
    if solution.plan is None or expected is None:
        return
    plan, proof = solution.plan, solution.plan.certificate
    assert evaluate(both, plan).complaints == ()
    assert from_document(to_document(plan)) == plan
    assert proof.objective_of is Objective.MEAN_ACCURACY
    assert plan.mean_accuracy == pytest.approx(proof.objective)
    assert plan.mean_accuracy is not None
    assert plan.mean_accuracy <= expected + 1e-3
    assert plan.mean_accuracy >= expected - 2e-2  # what a lower cost weighs at most
    assert proof.bound >= expected - 1e-3


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=300))
@given(cases(), st.sampled_from(((), ("a",))))
def test_the_curve_of_one_target_is_that_of_one_program_over_everything(case: Case, moved: tuple[str, ...]) -> None:
    both, parts = case
    both = replace(both, slo=Slo())
    curve = cost_accuracy(both, workflows=moved)
    event(f"{len(curve.points)} corners")
    for level in LEVELS:
        asked = {n: replace(p, slo=Slo(accuracy=level if n in (moved or parts) else None)) for n, p in parts.items()}
        expected = mixture_optimum.best_of_several(combine_workflows("both", asked), asked)
        corner = curve.at_least(level)
        assert (corner is None) == (expected is None)
        if corner is not None and expected is not None:
            assert corner.cost_usd_per_h == pytest.approx(expected, rel=1e-4, abs=1e-5)
            _check(MovedTargets.of(both, moved), corner.plan, corner.x)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(6, nightly=200))
@given(cases(), st.sampled_from(((), ("a",))))
def test_the_curve_of_means_bounds_one_program_over_everything(case: Case, moved: tuple[str, ...]) -> None:
    both, parts = case
    both = replace(both, slo=Slo())
    curve = cost_mean_accuracy(both, workflows=moved, points=5)
    event(f"{len(curve.points)} points")
    for level in (72.0, 85.0, 97.0):
        asked = {
            n: replace(p, slo=Slo(mean_accuracy=level) if n in (moved or parts) else Slo()) for n, p in parts.items()
        }
        expected = mixture_optimum.best_of_several(combine_workflows("both", asked), asked)
        point = curve.at_least(level)
        before = [one.bound_usd_per_h for one in curve.points if one.start <= level]
        if expected is None:
            assert point is None
            continue
        assert max(before, default=0.0) <= expected * (1 + LITTLE) + LITTLE
        if point is not None:
            assert point.cost_usd_per_h >= expected * (1 - LITTLE) - LITTLE
            _check(MovedTargets.of(both, moved), point.plan, point.x)
        else:
            assert curve.highest is not None
            assert level <= curve.highest + LITTLE
    if curve.points and curve.highest is not None:
        span = curve.highest - curve.points[0].x
        assert curve.highest - curve.points[-1].x <= span / 2**6 + 1e-3


def _check(targets: MovedTargets, plan: Plan | None, accuracy: float) -> None:
    assert plan is not None
    assert targets.reached(plan) == pytest.approx(accuracy)
    asked = targets.asked(lambda slo: next(one.slo for one in plan.workflows if one.name in targets.workflows))
    assert evaluate(asked, plan).complaints == ()
