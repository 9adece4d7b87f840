"""The curve of the least cost over the mean accuracy, and corners that bear losses, against programs of everything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Independent, LossKind, Problem, Slo, cost_accuracy, cost_mean_accuracy, evaluate
from tests.brute_force import mixture_optimum, optimum
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples

LITTLE = 1e-6
MIX_GAP = 2e-4  # relative: the reference is solved to its own tolerances
POINTS = 6


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(12, nightly=400))
@given(
    problems(max_operators=3, limited=True),
    st.sampled_from((None, 60.0)),
    st.sampled_from((None, None, 0.05)),
)
def test_each_point_is_the_least_cost_and_the_curve_ends_at_the_highest_mean(
    problem: Problem, least: float | None, penalty: float | None
) -> None:
    problem = graded(roomy(problem))
    asked = replace(problem, slo=Slo(accuracy=least, mean_accuracy=70.0, penalty_usd_per_h=penalty))
    curve = cost_mean_accuracy(asked, accuracies=(70.0,), points=POINTS)
    highest = mixture_optimum.best(replace(problem, slo=Slo(accuracy=least)), most_accurate=True)

    mixes = any(point.plan is not None and point.plan.mixes for point in curve.points)
    event(f"{min(3, len(curve.points))} points or more, mixes {mixes}")
    assert curve.finished
    assert (highest is None) == (not curve.points)
    if highest is None or curve.highest is None:
        return
    assert highest - 0.02 <= curve.points[-1].x <= highest + 1e-3
    assert curve.highest >= highest - 1e-3
    for point in curve.points:
        assert _least(problem, least, point.start) >= point.bound_usd_per_h * (1 - LITTLE) - LITTLE
        if point.gap <= MIX_GAP:
            assert point.cost_usd_per_h == pytest.approx(_least(problem, least, point.x), rel=MIX_GAP, abs=1e-5)
        assert point.plan is not None
        assert not evaluate(replace(asked, slo=point.plan.slo), point.plan).complaints
    for one, two in itertools.pairwise(curve.points):
        assert one.x < two.x
        assert one.start <= one.x <= two.start
        assert one.cost_usd_per_h < two.cost_usd_per_h
        middle = _least(problem, least, (one.x + two.start) / 2.0)
        assert one.bound_usd_per_h - 1e-5 <= middle * (1 + MIX_GAP), "between two points the least cost is in their box"
        assert middle <= two.cost_usd_per_h * (1 + MIX_GAP) + 1e-5


def roomy(problem: Problem) -> Problem:
    """The problem with more workers: else few have a choice of plans."""
    return replace(problem, pools=tuple(replace(pool, count=2 * pool.count + 1) for pool in problem.pools))


def graded(problem: Problem) -> Problem:
    """The problem with accuracies that rise with the times of variants: else the cheapest are often the best."""
    accuracy = {}
    for operator in problem.operators:
        taken_s = {one.name: sum(times[1].load_s for times in one.service.values()) for one in operator.variants}
        ranks = sorted(taken_s, key=lambda name: (taken_s[name], name))
        accuracy[operator.name] = {name: 70.0 + 25.0 * rank / len(ranks) for rank, name in enumerate(ranks)}
    return replace(problem, accuracy=Independent(accuracy))


def _least(problem: Problem, least: float | None, mean: float) -> float:
    """The least cost of a mean accuracy; the slack is what both programs allow at the end of the range."""
    slo = Slo(accuracy=least, mean_accuracy=max(0.0, mean - 2e-6))
    found = mixture_optimum.best(replace(problem, slo=slo), most_accurate=False)
    assert found is not None
    return found


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=300))
@given(problems(max_operators=2, limited=True), st.sampled_from(LossKind))
def test_corners_that_bear_a_loss_are_the_least_costs(problem: Problem, kind: LossKind) -> None:
    asked = replace(graded(roomy(problem)), slo=Slo(survives=(kind,)))
    curve = cost_accuracy(asked)
    event(f"{len(curve.points)} corners")
    levels = {value for one in optimum.selections(asked) if (value := optimum.accuracy(asked, one)) is not None}
    for level in levels:
        target = replace(asked, slo=replace(asked.slo, accuracy=level))
        expected, corner = mixture_optimum.best(target, most_accurate=False), curve.at_least(level)
        assert (expected is None) == (corner is None)
        if expected is None or corner is None:
            continue
        assert corner.bound_usd_per_h <= expected * (1 + LITTLE) + LITTLE
        assert expected * (1 - LITTLE) - LITTLE <= corner.cost_usd_per_h
        if corner.gap <= MIX_GAP:
            assert corner.cost_usd_per_h <= expected * 1.01 + 1e-3, "a few requests rehearse the fallbacks"
    assert all(one.cost_usd_per_h < two.cost_usd_per_h for one, two in itertools.pairwise(curve.points))
