"""Plans by time where few workers may be started: against dynamic programming over all numbers of workers."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from jellybean_solver import (
    Clock,
    MigrationPrices,
    Period,
    Plan,
    PlansByTime,
    Problem,
    TimedProblem,
    cheapest_sequence,
    plans_by_time,
    solve,
)
from tests.support.small_problems import box, gpu, operator, problem, variant

POOLS = ("box", "gpu")
BOX_PER_S, GPU_PER_S = 10.0, 25.0  # requests of a worker


def drawn(seed: int) -> tuple[Problem, tuple[Period, ...]]:
    """A problem of one operator, and the rates of a day."""
    rng = random.Random(seed)
    pools = (box(rng.randint(2, 6), 1.0), gpu(rng.randint(1, 3), rng.choice((1.5, 2.2, 3.0))))
    pools = tuple(replace(pool, max_starts=rng.choice((None, 0, 1, 2))) for pool in pools)
    see = operator("see", ["camera"], variant("only", {"box": 1 / BOX_PER_S, "gpu": 1 / GPU_PER_S}))
    most = BOX_PER_S * pools[0].count + GPU_PER_S * pools[1].count
    rates = [round(rng.uniform(0.05, 0.99) * most, 1) for _ in range(rng.randint(2, 4))]
    ends = list(itertools.accumulate(rng.choice((1, 4, 12)) for _ in rates))
    spans = zip((0, *ends), ends, rates, strict=False)
    return problem(see, pools=pools), tuple(Period(3600.0 * a, 3600.0 * b, {"camera": rate}) for a, b, rate in spans)


def at(asked: Problem, rates: Mapping[str, float], counts: Mapping[str, int]) -> Problem:
    sources = tuple(replace(one, rate_per_s=rates[one.name]) for one in asked.sources)
    pools = tuple(replace(pool, count=counts.get(pool.name, pool.count)) for pool in asked.pools)
    return replace(asked, sources=sources, pools=pools)


def found(asked: Problem, periods: tuple[Period, ...], *, repeats: bool) -> PlansByTime:
    def plan_for(rates: Mapping[str, float], counts: Mapping[str, int], within: Clock) -> Plan | None:
        return solve(at(asked, rates, counts)).plan

    timed = TimedProblem(asked, periods, repeats, MigrationPrices(), {}, plan_for, None, lambda plan: 0.0)
    answer = plans_by_time(timed)
    assert isinstance(answer, PlansByTime)
    return answer


def least_usd(asked: Problem, periods: tuple[Period, ...], *, repeats: bool) -> float:
    """The cost of the best numbers of workers, also of such as no plan is made for."""
    pools = [asked.pool_by_name[name] for name in POOLS]
    states = list(itertools.product(*(range(pool.count + 1) for pool in pools)))

    def stays(period: Period, state: tuple[int, ...]) -> float:
        able = state[0] * BOX_PER_S + state[1] * GPU_PER_S
        usd_per_h = sum(count * pool.price_usd_per_h for count, pool in zip(state, pools, strict=True))
        return period.hours * usd_per_h if able >= period.rates_per_s["camera"] else math.inf

    def moves(before: tuple[int, ...], after: tuple[int, ...]) -> float:
        limits = [math.inf if pool.max_starts is None else pool.max_starts for pool in pools]
        return 0.0 if all(y - x <= most for x, y, most in zip(before, after, limits, strict=True)) else math.inf

    costs = [[stays(period, state) for state in states] for period in periods]
    return cheapest_sequence(costs, [[moves(x, y) for y in states] for x in states], repeats=repeats)[0]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_changes_keep_the_limits_of_starts(seed: int, repeats: bool) -> None:
    asked, periods = drawn(seed)
    answer = found(asked, periods, repeats=repeats)
    rows = answer.periods
    steps = [*itertools.pairwise(rows), *([(rows[-1], rows[0])] if repeats else [])]
    for before, after in steps:
        runs, wanted = (Counter(worker.pool for worker in row.plan.workers) for row in (before, after))
        for pool in asked.pools:
            assert pool.max_starts is None or wanted[pool.name] - runs[pool.name] <= pool.max_starts
    unlimited = replace(asked, pools=tuple(replace(pool, max_starts=None) for pool in asked.pools))
    free_usd = least_usd(unlimited, periods, repeats=repeats)
    assert least_usd(asked, periods, repeats=repeats) <= answer.total_usd + 1e-9
    assert answer.total_usd <= answer.peak_usd + 1e-9
    assert (answer.unlimited_usd if answer.limited_by else answer.total_usd) == pytest.approx(free_usd)


def day(box_starts: int | None, gpu_starts: int | None) -> tuple[Problem, tuple[Period, ...]]:
    """Many hours of few requests, and an hour of many."""
    pools = (replace(box(6), max_starts=box_starts), replace(gpu(1), max_starts=gpu_starts))
    see = operator("see", ["camera"], variant("only", {"box": 1 / BOX_PER_S, "gpu": 1 / GPU_PER_S}))
    rates = ((0, 12, 8.0), (12, 13, 48.0))
    return problem(see, pools=pools), tuple(Period(3600.0 * a, 3600.0 * b, {"camera": r}) for a, b, r in rates)


@pytest.mark.parametrize(
    ("box_starts", "gpu_starts", "usd"),
    [
        (None, None, 12 * 1.0 + 5.0),
        (4, None, 12 * 1.0 + 5.0),  # four boxes more
        (2, None, 12 * 1.0 + 6.0),  # two boxes more, and a gpu
        (1, 0, 12 * 4.0 + 5.0),  # boxes that do not start again run all day: a plan for more requests
    ],
)
def test_plans_are_found_that_can_be_started(box_starts: int | None, gpu_starts: int | None, usd: float) -> None:
    asked, periods = day(box_starts, gpu_starts)
    assert least_usd(asked, periods, repeats=True) == pytest.approx(usd)
    assert found(asked, periods, repeats=True).total_usd == pytest.approx(usd)
