"""The report attributes cost exactly as the one scorer does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given

from jellybean.documents import build_problem, load_project
from jellybean.report.breakdown import break_down, operator_loads
from jellybean_solver import Plan, Problem, evaluate, solve
from tests.strategies import problems

VQA = Path(__file__).parents[3] / "examples" / "vqa"


def _check(problem: Problem, plan: Plan) -> None:
    found, scored = break_down(plan), evaluate(problem, plan)
    by_tier = {
        tier: sum(w.price_usd_per_h * problem.sites.get(tier, 1) for w in plan.workers if w.tier == tier)
        for tier in problem.tiers
    }
    by_operator = {name: cost.compute_usd_per_h for name, cost in scored.by_operator.items()}
    for shares, by_name in ((found.operators, by_operator), (found.tiers, by_tier)):
        for share in shares:
            assert share.usd_per_h == pytest.approx(by_name.get(share.name, 0.0), rel=1e-6, abs=1e-9)
    crossings = [flow for flow in scored.flows if flow.crosses]
    network = sum(crossing.cost_usd_per_h for crossing in crossings)
    assert found.traffic.usd_per_h == pytest.approx(network, rel=1e-6, abs=1e-9)
    crossing = sum(flow.bytes_per_s for flow in found.flows if flow.crosses)
    assert crossing == pytest.approx(sum(item.bytes_per_s for item in crossings), abs=1e-9)
    for worker in plan.workers:
        loads = operator_loads(plan, worker)
        assert sum(loads.values()) == pytest.approx(scored.loads[worker.name], rel=1e-6, abs=1e-9)


@given(problem=problems())
def test_breakdown_equals_the_scorer(problem: Problem) -> None:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    _check(problem, plan)


def test_breakdown_equals_the_scorer_on_the_published_figures() -> None:
    problem = build_problem(load_project(VQA))
    plan = solve(problem).plan
    assert plan is not None
    _check(problem, plan)
