"""The retry budget: a burst is free, a multiple of the load is not."""

from __future__ import annotations

from jellybean.serving.gateway.requests.retry_budget import RetryBudget


def test_a_burst_of_all_in_hand_then_a_share_of_what_comes() -> None:
    budget = RetryBudget(capacity=3, share=0.25)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    for _ in range(4):
        assert not budget.take()
        budget.earn()
    assert [budget.take(), budget.take()] == [True, False]
    for _ in range(100):
        budget.earn()
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
