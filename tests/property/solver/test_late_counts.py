"""Bounds that count queues at single workers against all plans of small problems, simulated from the cheapest up."""

from __future__ import annotations

import pytest

from benchmarks.deadline.enumeration import cheapest_in_time
from benchmarks.deadline.problems import TINY, binding_problem
from jellybean.planning.project_plan import settle
from jellybean_solver import solve
from tests.support.examples import examples

FIRST_SEED = 702  # none of these was looked at while the bound was built


@pytest.mark.slow
def test_no_plan_that_is_in_time_by_simulation_costs_less_than_the_bound() -> None:
    compared = 0
    for seed in range(FIRST_SEED, FIRST_SEED + examples(1, nightly=40)):
        problem = binding_problem(seed, TINY)
        truth = None if problem is None else cheapest_in_time(problem, 300)
        if problem is None or truth is None or truth.usd_per_h is None:
            continue
        plan = settle(problem, {}, solve(problem, explained=False), 1e-3, None).solution.plan
        assert plan is not None
        assert plan.certificate.bound <= truth.usd_per_h * (1.0 + 1e-6), f"seed {seed}"
        compared += 1
    assert compared
