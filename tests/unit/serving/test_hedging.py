"""When a slow request is sent a second way."""

from __future__ import annotations

import math

import pytest

from jellybean.serving.gateway.hedging import Hedge
from jellybean.serving.gateway.retry_budget import RetryBudget
from jellybean_agent.errors import PlanViewError


def test_a_time_is_a_time_whatever_is_answered() -> None:
    hedge = Hedge("0.3")
    for _ in range(200):
        hedge.answered(5.0)
    assert hedge.after_s == 0.3


def test_a_share_is_of_the_last_answers_once_there_are_some() -> None:
    hedge = Hedge("95%")
    for number in range(63):
        hedge.answered(number / 100)
    assert hedge.after_s == math.inf
    for number in range(63, 100):
        hedge.answered(number / 100)
    assert 0.85 <= hedge.after_s <= 0.95
    for _ in range(600):
        hedge.answered(0.02)
    assert hedge.after_s == 0.02


def test_hedges_do_not_hide_how_long_first_attempts_take() -> None:
    """One of ten takes 1 s. Sent a second way, most of these are answered sooner, which says nothing of the first."""
    hedge = Hedge("95%")
    for _ in range(64):
        hedge.answered(0.1)
    assert hedge.after_s == 0.1
    for number in range(300):
        slow = number % 10 == 0
        if slow and hedge.after_s < 1.0 and number % 30:
            hedge.answered(hedge.after_s + 0.1, is_exact=False)
        else:
            hedge.answered(1.0 if slow else 0.1)
    assert hedge.after_s == 1.0


@pytest.mark.parametrize("text", ["", "soon", "0%", "100%", "-1", "nan", "inf", "95%%", "95 % of all"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(PlanViewError, match="write seconds"):
        Hedge(text)


def test_hedges_leave_their_reserve_to_what_is_lost() -> None:
    budget = RetryBudget(most=10, share=0.2)
    assert [budget.take(0.5) for _ in range(6)] == [True] * 5 + [False]
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
