"""The view of one of several workflows: what it has of the plan, and how workers call that."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from jellybean.documents import load_any_project
from jellybean.planning import plan_project, require_plan
from jellybean_agent import PlanView, plan_view, workflow_views
from jellybean_solver import Plan, to_document

SITES = "sites.edge=3 vqa.sources.image.rate=10/s vqa.sources.speech.rate=10/s notes.sources.speech.rate=1/s"
EXAMPLE = Path(__file__).parents[4] / "examples" / "two-workflows"


@pytest.fixture(scope="module", params=["", SITES])
def plan(request: pytest.FixtureRequest) -> Plan:
    changes = request.param.split()
    return require_plan(plan_project(load_any_project(EXAMPLE, changes)))


@pytest.fixture(scope="module")
def views(plan: Plan) -> dict[str, PlanView]:
    return dict(workflow_views(to_document(plan)))


def test_each_has_its_own_names_and_targets(plan: Plan, views: dict[str, PlanView]) -> None:
    assert list(views) == [workflow.name for workflow in plan.workflows] == ["notes", "vqa"]
    for workflow in plan.workflows:
        view = views[workflow.name]
        assert (view.name, view.served_name, view.identity) == (
            plan.name,
            workflow.name,
            f"{plan.name}/{workflow.name}",
        )
        own = [
            operator.name.partition("/")[2]
            for operator in plan.operators
            if plan.workflow_of(operator.name) == workflow.name
        ]
        assert list(view.operators) == own
        assert all("/" not in up for one in view.operators.values() for up, _ in one.wiring.inputs)
        assert view.figures.slo_accuracy == workflow.slo.accuracy
        assert view.figures.accuracy == workflow.accuracy
        assert view.figures.cost_usd_per_h == pytest.approx(workflow.cost.total_usd_per_h)
        assert view.figures.bound_usd_per_h is None  # the proof is one of both together


def test_workers_that_are_shared_are_paid_once(plan: Plan, views: dict[str, PlanView]) -> None:
    for workflow in plan.workflows:
        paid = sum(worker.price_usd_per_h for worker in views[workflow.name].serving)
        assert paid == pytest.approx(workflow.cost.compute_usd_per_h)
    total = math.fsum(worker.price_usd_per_h for view in views.values() for worker in view.serving)
    assert total == pytest.approx(plan.cost.compute_usd_per_h)


def test_routes_have_the_numbers_of_the_plan(plan: Plan, views: dict[str, PlanView]) -> None:
    whole = plan_view(json.loads(json.dumps(to_document(plan))))
    for view in views.values():
        assert sum(view.weights) == pytest.approx(1.0)
        for number in range(len(view.routes)):
            route = whole.routes[view.plan_route(number)]
            assert {view.qualified(name): worker for name, worker in view.routes[number].items()} == {
                name: worker for name, worker in route.items() if view.owns(name)
            }
