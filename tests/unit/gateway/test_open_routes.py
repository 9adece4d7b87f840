"""Which shares of the routes are taken while workers are away, of plans with fallbacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.serving.gateway.plans.open_routes import OpenRoutes
from jellybean_agent import PlanView, PlanViewError, plan_view
from jellybean_protos.plan_format import ROUTING_VERSION
from jellybean_solver import from_document, to_document
from jellybean_solver.model.plan import Fallback
from tests.support.tiny_models import chain, make_plan, scale

FALLBACKS = (
    Fallback("cloud-1", (1, 2), (1.0, 0.0, 0.0)),
    Fallback("edge-1", (0,), (0.0, 0.5, 0.5)),
    Fallback("cloud-2", (2,)),
)


def view_of(root: Path, fallbacks: tuple[Fallback, ...] = FALLBACKS) -> PlanView:
    """Nearly all at edge-1; a few over cloud-1, and of these some on to cloud-2."""
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    routes = [
        (0.98, {"double": "edge-1", "triple": "edge-1"}),
        (0.01, {"double": "cloud-1", "triple": "cloud-1"}),
        (0.01, {"double": "cloud-1", "triple": "cloud-2"}),
    ]
    plan = from_document(make_plan(root, operators, routes, sources={"x": "edge"}))
    return plan_view(to_document(replace(plan, fallbacks=fallbacks)))


def shares(view: PlanView, *away: str) -> Counter[int]:
    routes = OpenRoutes(view, lambda name: name in away)
    routes.reweight()
    drawn = (routes.draw() for _ in range(1000))
    return Counter(one[0] for one in drawn if one is not None and one[1])


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        ((), {0: 980, 1: 10, 2: 10}),
        (("edge-1",), {1: 500, 2: 500}),  # in halves
        (("cloud-1",), {0: 1000}),
        (("cloud-2",), {0: 990, 1: 10}),  # a spare: the others keep their proportions, and no other fallback is taken
        (("cloud-1", "cloud-2"), {0: 1000}),
    ],
)
def test_the_fallback_of_the_smallest_loss_is_taken(
    away: tuple[str, ...], expected: dict[int, int], tmp_path: Path
) -> None:
    found = shares(view_of(tmp_path), *away)
    assert found.keys() == expected.keys()
    assert all(abs(found[route] - count) <= 1 for route, count in expected.items())


@pytest.mark.parametrize(
    "wrong",
    [(1.0, 0.0), (0.5, 0.0, 0.0), (0.0, 1.0, 0.0), (2.0, -1.0, 0.0)],
    ids=["short", "half", "closed", "negative"],
)
def test_weights_that_are_no_shares_of_the_routes_left_are_refused(wrong: tuple[float, ...], tmp_path: Path) -> None:
    with pytest.raises(PlanViewError, match="a fallback does not share the requests out"):
        view_of(tmp_path, (Fallback("cloud-1", (1, 2), wrong),))


def test_gateways_that_know_no_fallbacks_refuse_the_plan(tmp_path: Path) -> None:
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    routes = [(0.5, {"double": "edge-1"}), (0.5, {"double": "edge-2"})]
    plan = from_document(make_plan(tmp_path, operators, routes, sources={"x": "edge"}))
    assert to_document(plan)["version"] < ROUTING_VERSION
    assert to_document(replace(plan, fallbacks=(Fallback("edge-1", (0,), (0.0, 1.0)),)))["version"] == ROUTING_VERSION


def test_routes_open_site_by_site_as_their_workers_come(tmp_path: Path) -> None:
    """Routes 0 and 1 are of the sites edge-1 and edge-2, whose requests all go on to cloud-1."""
    away = {"edge-1/edge-1", "edge-2/edge-1", "cloud-1"}
    routes = OpenRoutes(plan_view(chain(tmp_path, sites={"edge": 2})), lambda name: name in away)
    routes.reweight()
    assert not routes.has_opened
    assert routes.missing_of_closed_sites() == away

    away -= {"edge-1/edge-1", "cloud-1"}
    routes.reweight()
    assert routes.has_opened
    assert [routes.has_site_opened(route) for route in (0, 1)] == [True, False]
    assert [routes.missing(route) for route in (0, 1)] == [set(), {"edge-2/edge-1"}]
    assert routes.missing_of_closed_sites() == {"edge-2/edge-1"}
    assert {routes.draw() for _ in range(50)} == {(0, True), (1, False)}

    away.clear()
    routes.reweight()
    away.add("edge-2/edge-1")
    routes.reweight()
    assert routes.has_site_opened(1)  # it has been open: its workers were lost since
