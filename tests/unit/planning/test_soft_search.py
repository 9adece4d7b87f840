"""The plan of least cost and penalty on made-up curves of cost over p99 latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.planning.deadline.soft_search import Candidate, NoPlan, SoftOutcome, SoftSearch, SoftTarget

STEPS = [(1.0, 0.5), (1.5, 0.4), (2.0, 0.32), (4.0, 0.25)]  # USD per hour and p99 latency of each plan there is


def planner(
    steps: Sequence[tuple[float, float]], proven: float = 1.0, *, tells_nearest: bool = True
) -> Callable[[float], Candidate[float] | NoPlan]:
    """Plans for a target; each bound is a part `proven` of the cost."""

    def plan(target_s: float) -> Candidate[float] | NoPlan:
        in_time = [(cost, p99_s) for cost, p99_s in steps if p99_s <= target_s]
        if not in_time:
            return NoPlan(min(p99_s for _, p99_s in steps) if tells_nearest else None)
        cost, p99_s = min(in_time)
        return Candidate(cost, proven * cost, p99_s, cost)

    return plan


def run(
    target: SoftTarget,
    steps: Sequence[tuple[float, float]] = STEPS,
    proven: float = 1.0,
    tolerance: float = 1e-9,
    **options: float,
) -> SoftOutcome[float]:
    plan = planner(steps, proven)
    cheapest = plan(math.inf)
    assert isinstance(cheapest, Candidate)
    return SoftSearch(target, cheapest, plan, tolerance=tolerance, most=60, **options).run()


@pytest.mark.parametrize(
    ("usd_per_h_per_s", "cost"), [(0.1, 1.0), (4.9, 1.0), (5.1, 1.5), (6.2, 1.5), (6.3, 2.0), (28.0, 2.0), (29.0, 4.0)]
)
def test_time_is_bought_while_it_is_worth_its_price(usd_per_h_per_s: float, cost: float) -> None:
    target = SoftTarget(0.25, usd_per_h_per_s)
    found = run(target)
    assert found.best.planned == cost
    assert found.bound_usd_per_h == pytest.approx(cost + target.penalty(found.best.p99_s), rel=1e-3)
    assert found.bound_usd_per_h <= cost + target.penalty(found.best.p99_s)


def test_a_cheapest_plan_that_meets_the_target_needs_no_other() -> None:
    found = run(SoftTarget(0.6, 1.0))
    assert (found.best.planned, found.bound_usd_per_h, found.tried_s) == (1.0, 1.0, ())


def test_a_small_penalty_needs_no_other_plan_either() -> None:
    found = run(SoftTarget(0.3, 0.01), tolerance=0.005)
    assert (found.best.planned, found.bound_usd_per_h, found.tried_s) == (1.0, 1.0, ())


def test_the_soft_target_itself_is_tried() -> None:
    found = run(SoftTarget(0.33, 100.0))
    assert 0.33 in found.tried_s
    assert (found.best.planned, found.bound_usd_per_h) == (2.0, pytest.approx(2.0))


def test_a_target_that_no_plan_meets_leads_to_the_nearest_one() -> None:
    found = run(SoftTarget(0.1, 1000.0))
    assert (found.best.planned, found.refused_s) == (4.0, 0.1)
    assert found.tried_s[:2] == (0.1, 0.25) and min(found.tried_s[2:]) > 0.25  # nothing where no plan was found
    assert found.bound_usd_per_h == 4.0  # for that there is none is not proven


def test_what_is_proven_to_be_too_fast_is_left_out() -> None:
    found = run(SoftTarget(0.1, 1000.0), least_s=0.25)
    assert found.best.planned == 4.0
    assert min(found.tried_s) > 0.25 - 1e-9
    assert found.bound_usd_per_h >= 1.0 + 150.0


@pytest.mark.parametrize("least_s", [0.3, 0.45, 0.9])
def test_a_plan_below_what_was_proven_refutes_it(least_s: float) -> None:
    found = run(SoftTarget(0.1, 30.0), least_s=least_s)
    least = min(cost + 30.0 * (p99_s - 0.1) for cost, p99_s in STEPS if p99_s == 0.5 or least_s < 0.45)
    assert found.bound_usd_per_h <= min(least, found.best.cost_usd_per_h + 30.0 * (found.best.p99_s - 0.1))


def test_the_number_of_targets_is_limited() -> None:
    plan = planner([(1.0 + number, 1.0 - number / 100) for number in range(90)], proven=0.5)
    cheapest = plan(math.inf)
    assert isinstance(cheapest, Candidate)
    found = SoftSearch(SoftTarget(0.1, 99.0), cheapest, plan, most=4).run()
    assert len(found.tried_s) == 4


def test_what_was_found_before_time_ended_stands() -> None:
    calls: list[float] = []

    def plan(target_s: float) -> Candidate[float] | NoPlan:
        calls.append(target_s)
        return planner(STEPS)(target_s) if len(calls) < 3 else NoPlan(out_of_time=True)

    found = SoftSearch(SoftTarget(0.25, 20.0), Candidate(1.0, 1.0, 0.5, 1.0), plan, tolerance=0.0).run()
    assert found.out_of_time and len(calls) == 3
    assert found.best.planned in {1.5, 2.0, 4.0}
    assert found.bound_usd_per_h <= 2.0 + 20.0 * 0.07


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.05, 2.0)), min_size=1, max_size=8),
    st.floats(0.01, 2.5),
    st.floats(1e-3, 100.0),
    st.sampled_from([1.0, 0.9, 0.0]),
    st.booleans(),
)
def test_no_plan_of_the_curve_is_below_the_bound(
    steps: list[tuple[float, float]], target_s: float, usd_per_h_per_s: float, proven: float, tells_nearest: bool
) -> None:
    """And with proven costs the value is the least one, to the tolerance."""
    target, plan = SoftTarget(target_s, usd_per_h_per_s), planner(steps, proven, tells_nearest=tells_nearest)
    cheapest = plan(math.inf)
    assert isinstance(cheapest, Candidate)
    search = SoftSearch(target, cheapest, plan, most=200)
    found = search.run()
    least = min(cost + target.penalty(p99_s) for cost, p99_s in steps)
    assert found.bound_usd_per_h <= least * (1 + 1e-9)
    assert search.value(found.best) >= least * (1 - 1e-9)
    if proven == 1.0 and tells_nearest:
        assert search.value(found.best) <= least / (1.0 - 0.006)
