"""The curves against enumeration, on random small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings

from jellybean_solver import Problem, Slo, cost_accuracy, cost_rate, evaluate
from jellybean_solver.planning.requirements import scaled
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

    event(f"{len(curve.points)} corners")
    assert curve.exact
    assert curve.ended
    for level in {value for value, _ in known}:
        corner = curve.at_least(level)
        assert corner is not None
        cheapest = min(cost for value, cost in known if value >= level)
        assert corner.cost_usd_per_h == pytest.approx(cheapest, rel=2e-6, abs=2e-6)
    best = max((value for value, _ in known), default=None)
    assert (curve.points[-1].x if curve.points else None) == (None if best is None else pytest.approx(best))
    for before, after in itertools.pairwise(curve.points):
        assert after.x > before.x
        assert after.cost_usd_per_h > before.cost_usd_per_h
    stepped = cost_accuracy(problem, step=10.0)
    assert [corner.x for corner in stepped.points[-1:]] == [corner.x for corner in curve.points[-1:]]
    for corner in stepped.points:
        exact = curve.at_least(corner.x)
        assert exact is not None
        assert corner.cost_usd_per_h == pytest.approx(exact.cost_usd_per_h, rel=2e-6, abs=2e-6)
    for corner in curve.points:
        target = replace(problem, slo=Slo(accuracy=corner.x))
        assert corner.plan is not None
        assert evaluate(target, corner.plan).complaints == corner.breaches == ()


@settings(max_examples=examples(12, nightly=400))
@given(problems(strained=True))
def test_every_rate_has_its_cheapest_cost_and_nothing_beyond_the_highest_fits(problem: Problem) -> None:
    curve = cost_rate(problem, (0.5, 1.0))

    event(f"highest {curve.highest is not None}")
    for point in curve.points:
        expected = optimum.cheapest(scaled(problem, point.x)).cost
        if point.x == curve.highest and point.x not in {0.5, 1.0}:
            assert point.plan is not None, "the oracle may fail by a rounding exactly at the edge"
        elif expected is None:
            assert point.plan is None
            assert point.reasons
        else:
            assert point.cost_usd_per_h == pytest.approx(expected, rel=2e-6, abs=2e-6)
    costs = [point.cost_usd_per_h for point in curve.points if point.plan is not None]
    assert all(after >= before - 2e-6 for before, after in itertools.pairwise(costs))
    assume(curve.highest is not None)
    assert curve.highest is not None
    assert optimum.cheapest(scaled(problem, curve.highest * (1 + 1e-4))).cost is None
