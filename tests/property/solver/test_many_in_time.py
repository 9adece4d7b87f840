"""Many workflows under p99 targets: those that are late in the cheapest plan are planned again, beside the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.unlike.sites import unlike_sites
from jellybean_solver import (
    Deadline,
    Problem,
    Solution,
    SolveOptions,
    evaluate,
    has_many_workflows,
    p99_by_workflow,
)
from jellybean_solver.planning.solve import solve_with
from tests.plan_check import complaints

SITES = 18


def _with_targets(problem: Problem, targets: dict[str, float]) -> Problem:
    workflows = tuple(
        replace(one, slo=replace(one.slo, latency_p99_s=targets.get(one.name))) for one in problem.workflows
    )
    return replace(problem, workflows=workflows)


@pytest.fixture(scope="module")
def problem() -> Problem:
    """More unlike sites than one program takes, of more than middle size together."""
    found = unlike_sites(2, SITES, operators=6, variants=3, cloud=5)
    assert has_many_workflows(found)
    return found


@pytest.fixture(scope="module")
def start(problem: Problem) -> Solution:
    """Without targets."""
    return solve_with(problem, SolveOptions(gap=0.05))


@pytest.mark.slow
def test_late_ones_are_planned_in_time_and_the_others_stay(problem: Problem, start: Solution) -> None:
    cheapest = start.plan
    assert cheapest is not None
    targeted = _with_targets(problem, {workflow.name: 3600.0 for workflow in problem.workflows})
    stated = {workflow.name: workflow.slo for workflow in targeted.workflows}
    cheap = replace(cheapest, workflows=tuple(replace(one, slo=stated[one.name]) for one in cheapest.workflows))
    p99_s = p99_by_workflow(cheap)
    slowest = sorted(p99_s, key=lambda name: -p99_s[name])[:3]
    targets = {name: (0.9 if name in slowest else 1.5) * seconds for name, seconds in p99_s.items()}
    asked = _with_targets(problem, targets)
    solution = solve_with(asked, SolveOptions(deadline=Deadline(asked.deadline_s or 0.0), start=start))
    plan = solution.plan
    assert plan is not None, solution.infeasibility
    assert all(seconds <= targets[name] * (1 + 1e-6) for name, seconds in p99_by_workflow(plan).items())
    assert complaints(asked, plan) == []
    assert evaluate(asked, plan).complaints == ()
    assert plan.certificate.bound <= cheapest.cost.total_usd_per_h <= plan.cost.total_usd_per_h * (1 + 1e-9)
    chosen = {name: variant for name, variant in plan.selection.items() if plan.workflow_of(name) not in slowest}
    assert chosen == {name: variant for name, variant in cheapest.selection.items() if name in chosen}


@pytest.mark.slow
def test_a_target_below_all_plans_has_a_reason(problem: Problem, start: Solution) -> None:
    asked = _with_targets(problem, {"s3": 1e-4})
    solution = solve_with(asked, SolveOptions(deadline=Deadline(1e-4), start=start))
    assert solution.plan is None
    assert solution.infeasibility is not None
    assert solution.infeasibility.reasons[0].startswith("s3: no plan in time was found beside the other workflows")
