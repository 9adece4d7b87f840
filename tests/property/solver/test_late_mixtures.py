"""Mixtures under a p99 target beside plans of one selection, which are mixtures too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Deadline, Objective, Plan, Problem, Slo, evaluate, solve
from jellybean_solver.latency.estimate import latency
from tests import plan_check
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=200))
@given(problems(max_operators=3, limited=True), st.sampled_from((0.1, 0.3, 0.6, 0.9)))
def test_there_is_a_mixture_in_time_where_one_selection_is(problem: Problem, share: float) -> None:
    asked = replace(problem, slo=Slo(), objective=Objective.MEAN_ACCURACY)
    free = solve(asked, explained=False).plan
    assume(free is not None and 0.0 < latency(free).slowest_s < float("inf"))
    assert free is not None
    p99_s = share * latency(free).slowest_s

    def judge(plan: Plan) -> float:
        return latency(plan).slowest_s / p99_s

    found = solve(asked, deadline=Deadline(p99_s, judge), explained=False)
    single = solve(replace(problem, slo=Slo(accuracy=0.0)), deadline=Deadline(p99_s, judge), explained=False).plan
    event(f"{found.status}, one selection in time: {single is not None}")

    assert found.plan is not None or single is None
    if found.plan is None:
        return
    assert not evaluate(asked, found.plan).complaints
    assert not plan_check.complaints(asked, found.plan)
    assert judge(found.plan) <= 1.0
    assert found.plan.certificate.bound >= (found.plan.accuracy or 0.0) - 1e-6
