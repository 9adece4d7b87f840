"""When a slow request is hedged."""

from __future__ import annotations

import math

import pytest

from jellybean.serving.gateway.requests.hedging import Hedge
from jellybean.serving.gateway.requests.retry_budget import RetryBudget
from jellybean_agent import PlanViewError


def test_a_fixed_time_does_not_depend_on_latencies() -> None:
    hedge = Hedge("0.3")
    for _ in range(200):
        hedge.record(5.0)
    assert hedge.after_s == 0.3


def test_a_quantile_is_of_recent_latencies_once_there_are_enough() -> None:
    hedge = Hedge("95%")
    for number in range(63):
        hedge.record(number / 100)
    assert hedge.after_s == math.inf
    for number in range(63, 100):
        hedge.record(number / 100)
    assert 0.85 <= hedge.after_s <= 0.95
    for _ in range(600):
        hedge.record(0.02)
    assert hedge.after_s == 0.02


def test_hedges_do_not_shorten_the_quantile_of_first_attempts() -> None:
    """One of ten takes 1 s. Most of these are answered sooner by their hedge: censored latencies."""
    hedge = Hedge("95%")
    for _ in range(64):
        hedge.record(0.1)
    assert hedge.after_s == 0.1
    for number in range(300):
        slow = number % 10 == 0
        if slow and hedge.after_s < 1.0 and number % 30:
            hedge.record(hedge.after_s + 0.1, is_exact=False)
        else:
            hedge.record(1.0 if slow else 0.1)
    assert hedge.after_s == 1.0


@pytest.mark.parametrize("text", ["", "soon", "0%", "100%", "-1", "nan", "inf", "95%%", "95 % of all"])
def test_text_that_is_neither_time_nor_quantile_is_refused(text: str) -> None:
    with pytest.raises(PlanViewError, match="write seconds"):
        Hedge(text)


def test_hedges_leave_a_reserve_for_lost_attempts() -> None:
    budget = RetryBudget(capacity=10, share=0.2)
    assert [budget.take(0.5) for _ in range(6)] == [True] * 5 + [False]
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
