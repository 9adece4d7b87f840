"""Numbers of children drawn from measured shares."""

from __future__ import annotations

import pytest

from jellybean_solver.model.distributions import child_count


def test_measured_shares_are_drawn_as_they_are() -> None:
    shares = (0.1, 0.0, 0.5, 0.4)
    counts = [child_count(2.2, level / 1000, shares) for level in range(1000)]
    assert [counts.count(number) for number in range(4)] == [100, 0, 500, 400]


def test_shares_that_do_not_quite_add_up_are_scaled() -> None:
    counts = [child_count(1.0, level / 1000, (0.0, 0.995)) for level in range(1000)]
    assert set(counts) == {1}


def test_shares_of_another_ratio_are_not_used() -> None:
    counts = [child_count(3.0, level / 1000, (0.5, 0.5)) for level in range(1000)]
    assert sum(counts) / 1000 == pytest.approx(3.0)
