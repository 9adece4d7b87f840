"""The time of a message between two processes, from the rounds of a measurement."""

from __future__ import annotations

import pytest

from jellybean.bench.hop import HopRound, hop_time


def rounds(*medians_s: float, busy_s: float = 0.001) -> list[HopRound]:
    return [HopRound([0.5 * median_s, median_s, 9.0], busy_s) for median_s in medians_s]


def test_rounds_of_a_busy_machine_do_not_count() -> None:
    quiet = hop_time(rounds(0.0055, 0.0055, 0.0055, 0.0055, 0.0055), stages=2)
    assert quiet.seconds == pytest.approx(0.0015)
    assert quiet.noise == 0.0
    busy = hop_time(rounds(0.0475, 0.031, 0.0055, 0.0095, 0.0475), stages=2)
    assert busy.seconds == pytest.approx(quiet.seconds)
    assert busy.noise == pytest.approx((46.5 - 8.5) / 30)


def test_busy_time_is_that_of_the_quietest_round() -> None:
    one, other = rounds(0.0055)[0], rounds(0.0055, busy_s=0.004)[0]
    assert hop_time([one, other], stages=2).seconds == pytest.approx(0.0015)
    assert hop_time(rounds(0.001), stages=2) == hop_time(rounds(0.0005), stages=2)  # never negative
