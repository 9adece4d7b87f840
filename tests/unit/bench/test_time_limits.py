"""Measurements at a time limit: a shorter window, or the highest rate so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from jellybean.bench.load_settings import LEAST_WINDOW_S, LoadSettings
from jellybean.bench.result import BenchResult
from jellybean.bench.sampling_range import highest_rate_range, sampling_ranges
from jellybean.bench.target import Target
from jellybean.cli.serving.bench_workflows import cut_short_notes
from jellybean_solver import Arrivals, OutOfTimeError, limited_work, solve
from tests.support.small_problems import box, operator, problem, variant

RESULT = BenchResult("hash", "", 0, 1.0, 1.0, 1, 1, 1, 0, 1.0, True, "", 0.0)


@dataclass
class Data:
    arrivals: Arrivals = Arrivals.POISSON


class Sustains(Target):
    """Sustains rates up to 100/s; a window takes its time on the clock `now`, which nothing else moves."""

    planned_per_s = 80.0  # type: ignore[assignment]

    def __init__(self, most_per_s: float = 100.0) -> None:
        self.slow_latency_s, self.data, self.most_per_s, self.seconds = 0.01, cast(Any, Data()), most_per_s, 0.0
        self.windows: list[float] = []

    def now(self) -> float:
        return self.seconds

    def measure(self, rate_per_s: float, settings: LoadSettings = LoadSettings(), progress: Any = None) -> BenchResult:
        self.seconds += settings.end_s + 0.25
        self.windows.append(settings.duration_s)
        return replace(
            RESULT, rate_per_s=rate_per_s, sustained=rate_per_s <= self.most_per_s, duration_s=settings.duration_s
        )

    def _await_quiet(self) -> None:
        pass


@pytest.mark.parametrize("limit_s", [4.0, 10.0, 40.0])
def test_a_measurement_fits_into_the_time(limit_s: float) -> None:
    target, settings = Sustains(), LoadSettings(30.0, 2.0)
    with limited_work(limit_s, target.now):
        fitted = target.in_time(settings, 10.0)
    assert LEAST_WINDOW_S <= fitted.duration_s <= 30.0
    assert fitted.end_s + fitted.settle_s <= limit_s + 1e-9
    assert target.in_time(settings, 10.0) == settings


def test_too_little_time_is_told() -> None:
    target = Sustains()
    with limited_work(1.0, target.now), pytest.raises(OutOfTimeError, match=r"nothing was measured: 1\.0 s"):
        target.in_time(LoadSettings(), 10.0)


@pytest.mark.parametrize("limit_s", [10.0, 30.0, 60.0])
def test_the_highest_rate_so_far(limit_s: float) -> None:
    target = Sustains()
    with limited_work(limit_s, target.now):
        result = target.saturate(60.0)
    assert target.seconds <= limit_s
    assert result.highest_rate_per_s is not None and result.highest_rate_per_s <= 100.0
    if result.ended_by_time_limit:
        assert "the time limit ended the search" in result.ended_by_time_limit
        assert "highest sustained rate at least" in result.verdict
        assert "ended_by_time_limit" in result.to_dict()
    else:
        assert result.highest_rate_per_s > 90.0
        assert "ended_by_time_limit" not in result.to_dict()


def test_rates_that_were_not_sustained_are_named() -> None:
    target = Sustains(most_per_s=1.0)
    with limited_work(12.0, target.now), pytest.raises(OutOfTimeError, match=r"not sustained: .*51/s"):
        target.saturate(60.0)


def test_without_a_limit_windows_are_as_long_as_ever() -> None:
    target = Sustains()
    result = target.saturate(60.0)
    assert set(target.windows) == {15.0}
    assert not result.ended_by_time_limit


def test_ranges_are_left_out_at_the_limit() -> None:
    plan = solve(problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()])).plan
    assert plan is not None
    due = [0.1 * number for number in range(5)]
    assert sampling_ranges(plan, due, 0.0, 0.5)
    with limited_work(0.0, lambda: 0.0):
        assert sampling_ranges(plan, due, 0.0, 0.5) == {}
        assert highest_rate_range(plan, 1.0, 20.0) == {}


def test_notes_on_what_the_limit_left_out() -> None:
    short, searched = replace(RESULT, duration_s=4.0), replace(RESULT, ended_by_time_limit="the limit ended it")
    note: Callable[..., list[str]] = lambda result, **options: list(cut_short_notes(result, **options))  # noqa: E731
    assert note(short, duration_s=None, saturate=False) == ["the time limit left a window of 4 s, in place of 30 s"]
    assert note(short, duration_s=4.0, saturate=False) == []
    assert note(searched, duration_s=None, saturate=True) == ["the limit ended it; the result is not recorded"]
    assert list(itertools.chain(note(short, duration_s=None, saturate=True))) == []
