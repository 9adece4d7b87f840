"""A plan for each period: against enumeration of all sequences; and periods that are merged."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean_solver import Period, cheapest_sequence, merged_periods

amounts = st.one_of(st.just(math.inf), st.integers(0, 20).map(float))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]]]:
    plans, periods = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    costs = [[draw(amounts) for _ in range(plans)] for _ in range(periods)]
    moves = [[0.0 if one == two else float(draw(st.integers(0, 9))) for two in range(plans)] for one in range(plans)]
    return costs, moves


@given(tables(), st.booleans())
def test_no_other_sequence_costs_less(table: tuple[list[list[float]], list[list[float]]], repeats: bool) -> None:
    costs, moves = table

    def total(chosen: tuple[int, ...]) -> float:
        paid = sum(own[plan] for own, plan in zip(costs, chosen, strict=True))
        steps = [*itertools.pairwise(chosen), *([(chosen[-1], chosen[0])] if repeats else [])]
        return paid + sum(moves[one][two] for one, two in steps)

    least = min(total(chosen) for chosen in itertools.product(range(len(moves)), repeat=len(costs)))
    found, chosen = cheapest_sequence(costs, moves, repeats=repeats)
    assert found == least
    if math.isfinite(least):
        assert total(chosen) == pytest.approx(least)


def hours(*rates: float) -> list[Period]:
    return [Period(3600.0 * at, 3600.0 * (at + 1), {"s": rate}) for at, rate in enumerate(rates)]


def test_equal_neighbours_are_one_period() -> None:
    found = merged_periods(hours(1, 1, 5, 5, 1), 24)
    assert [(one.hours, one.rates_per_s["s"]) for one in found] == [(2, 1), (2, 5), (1, 1)]


def test_those_that_differ_the_least_are_merged_first() -> None:
    found = merged_periods(hours(1, 2, 9, 10, 1), 3)
    assert [(one.hours, one.rates_per_s["s"]) for one in found] == [(2, 2), (2, 10), (1, 1)]


def test_one_period_has_the_highest_rates() -> None:
    (found,) = merged_periods(hours(1, 7, 3), 1)
    assert (found.start_s, found.end_s, found.rates_per_s) == (0.0, 3 * 3600.0, {"s": 7})
