"""Bounds that count queues at single places against all plans of small problems, simulated from the cheapest up."""

from __future__ import annotations

import pytest

from benchmarks.deadline.enumeration import cheapest_in_time
from benchmarks.deadline.problems import TINY, binding_problem
from jellybean.planning.predicted_latency import judge
from jellybean_solver import solve
from jellybean_solver.deadline.late_counts import LateCounts
from jellybean_solver.deadline.lower_bound import least_cost_in_time
from jellybean_solver.deadline.settings import DEFAULT_SETTINGS
from jellybean_solver.fleet.settings import SearchLimits
from tests.support.examples import examples

# Of 604 an exclusive operator needs a second worker for its queue alone. Seeds from 702 on were not looked at before.
SEEDS = (604, *range(702, 742))


@pytest.mark.slow
def test_no_plan_that_is_in_time_by_simulation_costs_less_than_the_bound() -> None:
    late = LateCounts(lambda plan: (judged := judge(plan)) is None or judged.kept, DEFAULT_SETTINGS.counted)
    compared = 0
    for seed in SEEDS[: examples(2, nightly=41)]:
        problem = binding_problem(seed, TINY)
        truth = None if problem is None else cheapest_in_time(problem, 300)
        if problem is None or truth is None or truth.usd_per_h is None or problem.slo.latency_p99_s is None:
            continue
        cheapest = solve(problem, explained=False).plan
        assert cheapest is not None
        bound = least_cost_in_time(problem, problem.slo.latency_p99_s, cheapest, SearchLimits(0.0), late)
        assert bound <= truth.usd_per_h * (1.0 + 1e-6), f"seed {seed}"
        compared += 1
    assert compared
