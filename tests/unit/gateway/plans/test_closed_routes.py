"""What the gateways of workflows tell each other about closed routes."""

from __future__ import annotations

from jellybean.serving.gateway.plans.closed_routes import ClosedRoutes

NONE, ONE = [frozenset[int]()], [frozenset({1})]


def test_who_is_served_no_more_closes_no_routes_of_others() -> None:
    told: list[str] = []
    routes = ClosedRoutes()

    def of_a() -> None:
        told.append("a")

    def of_b() -> None:
        told.append("b")

    routes.listen("a", of_a)
    routes.listen("b", of_b)
    routes.state("a", ONE)
    assert (told, routes.elsewhere("b", 0)) == (["b"], {1})
    routes.leave("a", of_a)
    assert (told, routes.elsewhere("b", 0)) == (["b", "b"], frozenset())
    routes.state("a", ONE)  # a timer that was set before
    assert (told, routes.elsewhere("b", 0)) == (["b", "b"], frozenset())
    routes.listen("a", of_a)
    routes.state("a", ONE)
    assert routes.elsewhere("b", 0) == {1}
