"""The joint program against enumeration: the way of large problems, taken by small ones."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import event, given, settings

from jellybean_solver import Problem, evaluate
from jellybean_solver.demand import Network
from jellybean_solver.large import cheapest_large
from jellybean_solver.selection import Clock
from jellybean_solver.solve import finish
from tests import brute_force
from tests.plan_check import complaints
from tests.strategies import problems

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@settings(max_examples=800 if NIGHTLY else 80)
@given(problems())
def test_without_memory_limits_it_is_exact(problem: Problem) -> None:
    expected = brute_force.cheapest(problem).cost
    network = Network(problem)
    outcome = cheapest_large(network, problem.slo.accuracy, fixed=None, gap=0.0, clock=Clock())
    event(outcome.stopped)

    if expected is None:
        assert outcome.found is None
        assert math.isinf(outcome.bound)
        return
    assert outcome.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert outcome.bound <= expected + 1e-6 * max(1.0, expected)
    plan, evaluation = finish(network, outcome)
    assert evaluation.complaints == ()
    assert plan.cost.total_usd_per_h == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=800 if NIGHTLY else 80)
@given(problems(limited=True))
def test_the_bound_holds_and_the_plan_too(problem: Problem) -> None:
    expected = brute_force.cheapest(problem).cost
    network = Network(problem)
    outcome = cheapest_large(network, problem.slo.accuracy, fixed=None, gap=0.0, clock=Clock())
    event("found" if outcome.found is not None else "none")

    assert outcome.bound <= (math.inf if expected is None else expected + 1e-6 * max(1.0, expected))
    if outcome.found is not None:
        plan, _ = finish(network, outcome)
        assert evaluate(problem, plan).complaints == ()
        assert complaints(problem, plan) == []
        assert expected is not None
        assert plan.cost.total_usd_per_h >= expected - 1e-6 * max(1.0, expected)
        assert (plan.certificate.gap == 0) == (plan.certificate.termination == "optimal")
