"""The rest of units of billing, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from jellybean_solver import Period, Plan, improved, unused_usd

HOUR_S = 3600.0


def hours(*ends: float) -> list[Period]:
    """Periods that end at these hours."""
    return [Period(start * HOUR_S, end * HOUR_S, {"camera": 1.0}) for start, end in pairwise((0.0, *ends))]


def plans(*counts: int) -> list[Plan]:
    """Plans with so many boxes, of 2 USD/h each."""
    worker = SimpleNamespace(pool="box", tier="edge", price_usd_per_h=2.0)
    return [cast(Plan, SimpleNamespace(workers=[worker] * count, sites_of=lambda _: 1)) for count in counts]


@pytest.mark.parametrize(
    ("counts", "ends", "repeats", "usd"),
    [
        ((1, 1), (0.25, 1.0), True, 0.0),  # never stopped
        ((1, 0), (0.25, 24.0), True, 1.5),  # 45 of 60 minutes are left
        ((1, 2, 1), (1.0, 1.5, 24.0), True, 1.0),  # the second one's half hour
        ((2, 1, 2), (0.5, 23.75, 24.0), True, 0.5),  # the second one runs over midnight: 45 minutes
        ((2, 1, 2), (0.5, 23.75, 24.0), False, 1.0 + 1.5),  # once: two runs of it
        ((1,), (2.5,), False, 1.0),
        ((1,), (3.0,), False, 0.0),
        ((0, 0), (1.0, 2.0), True, 0.0),
    ],
)
def test_the_rest_of_a_started_hour_is_paid(
    counts: Sequence[int], ends: Sequence[float], repeats: bool, usd: float
) -> None:
    found = unused_usd(hours(*ends), plans(*counts), {"box": HOUR_S}, repeats=repeats)
    assert found == pytest.approx(usd)


def test_other_pools_are_paid_by_the_second() -> None:
    assert unused_usd(hours(0.25, 24.0), plans(1, 0), {"gpu": HOUR_S}, repeats=True) == 0.0


def test_a_stretch_is_exchanged_where_that_is_cheaper() -> None:
    """Plan 0 needs one box, plan 1 two; for ten minutes one box less saves nothing."""
    periods, found = hours(12.0, 12.0 + 1 / 6, 24.0), plans(1, 2)

    def total(sequence: Sequence[int]) -> float:
        used = sum(2.0 * len(found[at].workers) * one.hours for at, one in zip(sequence, periods, strict=True))
        return used + unused_usd(periods, [found[at] for at in sequence], {"box": HOUR_S}, repeats=True)

    assert improved([1, 0, 1], total, 2) == [0, 0, 0]
    assert total([1, 0, 1]) == pytest.approx(total([1, 1, 1]))  # ten minutes without it are paid all the same
