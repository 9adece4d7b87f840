"""Of plans that cost the same `plan` takes the most accurate, against the curve of all accuracies."""

from __future__ import annotations

import pytest
from hypothesis import assume, event, given, settings

from jellybean.planning.project_plan import more_accurate
from jellybean_solver import Problem, cost_accuracy, evaluate, solve
from tests.strategies import problems
from tests.support.examples import examples


@settings(max_examples=examples(10, nightly=400))
@given(problems())
def test_no_plan_as_cheap_is_more_accurate(problem: Problem) -> None:
    cheapest = solve(problem)
    assume(cheapest.plan is not None and cheapest.plan.accuracy is not None)
    assert cheapest.plan is not None
    found = more_accurate(problem, cheapest).plan
    assert found is not None
    assert found.slo == problem.slo
    assert evaluate(problem, found).complaints == ()
    assert found.certificate.gap == 0
    assert found.certificate.objective == pytest.approx(found.cost.total_usd_per_h, rel=1e-9)
    cost = cheapest.plan.cost.total_usd_per_h
    assert found.cost.total_usd_per_h == pytest.approx(cost, rel=1e-8, abs=1e-8)
    event("more accurate" if found.accuracy != cheapest.plan.accuracy else "the same")
    levels = [c.x for c in cost_accuracy(problem).points if c.cost_usd_per_h <= cost * (1 + 1e-10)]
    assert found.accuracy is not None
    assert found.accuracy >= max(levels, default=found.accuracy) - 1e-6
