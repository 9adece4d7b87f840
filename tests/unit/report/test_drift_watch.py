"""What left its prediction is named soon, and steady traffic seldom is."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.report.drift.drift_watch import ALARM, TOLERANCE, DriftWatch, Observation
from tests.support.examples import NIGHTLY

INTERVAL_S = 10.0
DAYS = 10
SEEDS = range(20 if NIGHTLY else 4)
RATE_PER_S, TIME_S, CV, CHILDREN = 5.0, 0.1, 1.0, 3.0


def traffic(
    seed: int, seconds: float, *, rate: float = 1.0, time: float = 1.0, children: float = 1.0, begin_s: float = 0.0
) -> list[Observation]:
    """Virtual traffic: Poisson requests, exponential times, Poisson children; factors on what is predicted."""
    rng = np.random.default_rng(seed)
    count = int(seconds / INTERVAL_S)
    requests = rng.poisson(RATE_PER_S * rate * INTERVAL_S, count)
    busy_s = rng.gamma(np.maximum(requests, 1), TIME_S * time)
    below = rng.poisson(requests * CHILDREN * children)
    found = []
    for index in range(count):
        at_s, arrived = begin_s + index * INTERVAL_S, int(requests[index])
        planned = RATE_PER_S * INTERVAL_S
        found.append(Observation("rate", at_s, INTERVAL_S, arrived / INTERVAL_S, planned, RATE_PER_S, RATE_PER_S))
        if arrived:
            found.append(Observation("time", at_s, INTERVAL_S, busy_s[index] / arrived, arrived, TIME_S, TIME_S, CV))
            mean = below[index] / arrived
            found.append(Observation("children", at_s, INTERVAL_S, mean, arrived, CHILDREN, CHILDREN))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800 if NIGHTLY else 120)
def test_ten_days_of_steady_traffic_raise_at_most_one_alarm_in_twenty() -> None:
    alarms = 0
    for seed in SEEDS:
        watch, was_off = DriftWatch(), False
        for seen in traffic(seed, DAYS * 86_400.0):
            watch.see(seen)
            is_off = any(one.value >= ALARM for own in watch._watches.values() for one in (own.above, own.below))
            alarms += is_off and not was_off
            was_off = is_off
    assert alarms <= 1


@pytest.mark.parametrize(
    ("change", "name", "ratio"),
    [
        ({"rate": 2.0}, "rate", 2.0),
        ({"rate": 0.3}, "rate", 0.3),
        ({"time": 1.5}, "time", 1.5),
        ({"children": 2.0}, "children", 2.0),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_what_changes_is_named_within_a_minute(change: dict[str, float], name: str, ratio: float, seed: int) -> None:
    watch = DriftWatch().see_all(traffic(seed, 3600.0))
    assert watch.drifted == ()
    first = None
    for seen in traffic(seed + 100, 120.0, begin_s=3600.0, **change):
        watch.see(seen)
        if first is None and watch.drifted:
            first = seen.at_s + INTERVAL_S - 3600.0
            assert [one.name for one in watch.drifted] == [name]
    assert first is not None
    assert first <= 60.0
    found = next(one for one in watch.drifted if one.name == name)
    assert 1 + found.distance == pytest.approx(ratio, rel=0.25)
    assert 3500.0 <= found.since_s <= 3660.0
    assert found.once_in_s > 86_400.0


def test_what_is_tolerated_or_depends_on_the_load_is_not_off() -> None:
    watch = DriftWatch()
    for index in range(10_000):
        watch.see(Observation("a bit slow", 10.0 * index, 10.0, 0.108, 50, 0.1, 0.1))
        watch.see(Observation("by batch", 10.0 * index, 10.0, (0.05, 0.1)[index % 2], 50, 0.05, 0.1))
        watch.see(Observation("nothing", 10.0 * index, 10.0, 9.0, 0, 0.1, 0.1))
    assert watch.drifted == ()
    assert TOLERANCE == 0.1


def test_a_figure_that_was_off_both_ways_is_told_as_it_was_last() -> None:
    watch = DriftWatch()
    for begin_s, mean in ((0.0, 20.0), (60.0, 3.0)):
        for second in range(6):
            watch.see(Observation("rate", begin_s + 10.0 * second, 10.0, mean, 1000.0, 10.0, 10.0))
    (found,) = watch.drifted
    assert (found.since_s, found.distance < 0) == (60.0, True)
