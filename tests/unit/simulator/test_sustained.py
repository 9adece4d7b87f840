"""The one definition of a sustained rate, and the search for the highest."""

from __future__ import annotations

import pytest

from jellybean_solver import RATE_TOLERANCE, Arrivals, grace_s, highest_sustained, is_sustained


@pytest.mark.parametrize(
    "offered, answered, failed, expected",
    [
        (100, 100, 0, True),
        (100, 98, 0, True),
        (100, 97, 0, False),
        (100, 99, 1, False),
        (50, 49, 0, True),
        (0, 0, 0, False),
    ],
)
def test_98_percent_in_time_and_no_failure(offered: int, answered: int, failed: int, expected: bool) -> None:
    assert is_sustained(offered, answered, failed) is expected


def test_grace_is_a_quarter_second_or_twice_an_unloaded_request() -> None:
    assert grace_s(0.01, 10.0, 40.0, Arrivals.PERIODIC) == 0.25
    assert grace_s(0.4, 10.0, 40.0, Arrivals.PERIODIC) == 0.4
    assert grace_s(0.4, 10.0, 40.0, Arrivals.POISSON) == 2.4  # 20 requests, one standard deviation of 400


@pytest.mark.parametrize("low, high", [(90.0, 110.0), (1.0, 2.0), (1000.0, 2000.0), (99.0, 101.0), (99.9, 99.95)])
def test_the_search_finds_the_edge_from_any_bracket(low: float, high: float) -> None:
    tried: list[float] = []

    def probe(rate: float) -> bool:
        tried.append(rate)
        return rate <= 100.0

    found = highest_sustained(probe, low, high)
    assert found in tried
    assert 100.0 / (1 + RATE_TOLERANCE) <= found <= 100.0
    assert len(tried) <= 20


def test_nothing_sustained_is_zero_and_everything_ends() -> None:
    assert highest_sustained(lambda rate: False, 1.0, 2.0) == 0.0
    assert highest_sustained(lambda rate: True, 1.0, 2.0) > 1e15


def test_a_bracket_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="0 < low < high"):
        highest_sustained(lambda rate: True, 2.0, 1.0)
