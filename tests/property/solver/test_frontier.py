"""The curves against enumeration, on random small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings

from jellybean_solver import Problem, Slo, cost_accuracy, cost_rate, evaluate
from jellybean_solver.planning.infeasibility import scaled
from tests.brute_force import optimum
from tests.strategies import problems
from tests.support.examples import examples


@pytest.mark.slow
@settings(max_examples=examples(25, nightly=1000))
@given(problems())
def test_every_accuracy_has_its_cheapest_cost(problem: Problem) -> None:
    known = [
        (value, cost)
        for selection in optimum.selections(problem)
        if (value := optimum.accuracy(problem, selection)) is not None
        and (cost := optimum.cheapest_of(problem, selection)) is not None
    ]

    curve = cost_accuracy(problem)

    event(f"{len(curve.corners)} corners")
    assert curve.exact
    assert curve.ended
    for level in {value for value, _ in known}:
        corner = curve.at_least(level)
        assert corner is not None
        cheapest = min(cost for value, cost in known if value >= level)
        assert corner.cost_usd_per_h == pytest.approx(cheapest, rel=2e-6, abs=2e-6)
    best = max((value for value, _ in known), default=None)
    assert (curve.corners[-1].accuracy if curve.corners else None) == (None if best is None else pytest.approx(best))
    for before, after in itertools.pairwise(curve.corners):
        assert after.accuracy > before.accuracy
        assert after.cost_usd_per_h > before.cost_usd_per_h
    stepped = cost_accuracy(problem, step=10.0)
    assert [corner.accuracy for corner in stepped.corners[-1:]] == [corner.accuracy for corner in curve.corners[-1:]]
    for corner in stepped.corners:
        exact = curve.at_least(corner.accuracy)
        assert exact is not None
        assert corner.cost_usd_per_h == pytest.approx(exact.cost_usd_per_h, rel=2e-6, abs=2e-6)
    for corner in curve.corners:
        target = replace(problem, slo=Slo(accuracy=corner.accuracy))
        assert evaluate(target, corner.plan).complaints == corner.breaches == ()


@settings(max_examples=examples(12, nightly=400))
@given(problems(strained=True))
def test_every_rate_has_its_cheapest_cost_and_nothing_beyond_the_highest_fits(problem: Problem) -> None:
    curve = cost_rate(problem, (0.5, 1.0))

    event(f"highest {curve.highest_scale is not None}")
    for point in curve.points:
        expected = optimum.cheapest(scaled(problem, point.scale)).cost
        if point.scale == curve.highest_scale and point.scale not in {0.5, 1.0}:
            assert point.plan is not None, "the oracle may fail by a rounding exactly at the edge"
        elif expected is None:
            assert point.plan is None
            assert point.reasons
        else:
            assert point.cost_usd_per_h == pytest.approx(expected, rel=2e-6, abs=2e-6)
    costs = [point.cost_usd_per_h for point in curve.points if point.cost_usd_per_h is not None]
    assert all(after >= before - 2e-6 for before, after in itertools.pairwise(costs))
    assume(curve.highest_scale is not None)
    assert curve.highest_scale is not None
    assert optimum.cheapest(scaled(problem, curve.highest_scale * (1 + 1e-4))).cost is None
