from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean_solver import RouteDrawer, SolverError


def test_draws_are_spread() -> None:
    drawer = RouteDrawer([0.5, 0.25, 0.25])

    assert [drawer.draw() for _ in range(8)] == [0, 1, 2, 0, 0, 1, 2, 0]


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6), st.integers(1, 400))
def test_shares_are_kept_after_any_number_of_draws(weights: list[float], draws: int) -> None:
    drawer = RouteDrawer(weights)
    drawn = [drawer.draw() for _ in range(draws)]

    for index, weight in enumerate(weights):
        assert abs(drawn.count(index) - draws * weight / sum(weights)) < len(weights)


def test_a_route_without_weight_is_never_drawn() -> None:
    drawer = RouteDrawer([0.0, 1.0])

    assert {drawer.draw() for _ in range(10)} == {1}


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]) -> None:
    with pytest.raises(SolverError, match="routes need weights"):
        RouteDrawer(weights)
