"""The way of large problems, taken by small ones, against enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Assignment, Clock, Network, Pool, Problem, Sharing, evaluate
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.outcome import Outcome
from jellybean_solver.planning.solver import finish
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.strategies import problems, with_device_memory
from tests.support.examples import examples


def _searched(problem: Problem, gap: float = 0.0, clock: Clock | None = None) -> Outcome[Assignment]:
    target = problem.slo.accuracy
    return cheapest_large(Network(problem), target, fixed=None, gap=gap, clock=clock or Clock())


def _slack(cost: float) -> float:
    return 1e-6 * max(1.0, cost)


@st.composite
def exclusive_problems(draw: st.DrawFn) -> Problem:
    """Exclusive workers only, in pools of which some are alike but for their price."""
    problem = draw(problems())
    pools: list[Pool] = []
    for pool in problem.pools[:2]:
        alone = replace(pool, sharing=Sharing.EXCLUSIVE, count=min(pool.count, 2))
        pools.append(alone)
        if draw(st.booleans()):
            pools.append(
                replace(alone, name=f"{pool.name}-too", count=1, price_usd_per_h=draw(st.sampled_from((0.0, 0.4))))
            )
    operators = tuple(
        replace(
            operator,
            variants=tuple(
                replace(
                    one,
                    service={
                        pool.name: one.service[pool.name.removesuffix("-too")]
                        for pool in pools
                        if pool.name.removesuffix("-too") in one.service
                    },
                )
                for one in operator.variants
            ),
        )
        for operator in problem.operators
    )
    return replace(problem, pools=tuple(pools), operators=operators)


@settings(max_examples=examples(25, nightly=800))
@given(problems())
def test_without_memory_limits_it_is_exact(problem: Problem) -> None:
    _is_exact(problem)


@settings(max_examples=examples(25, nightly=400))
@given(exclusive_problems())
def test_exclusive_workers_are_exact(problem: Problem) -> None:
    _is_exact(problem)


def _is_exact(problem: Problem) -> None:
    expected = optimum.cheapest(problem).cost
    outcome = _searched(problem)
    event(outcome.termination)
    if expected is None:
        assert outcome.found is None
        assert math.isinf(outcome.bound)
        return
    assert outcome.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert outcome.bound <= expected + _slack(expected)
    plan, evaluation = finish(Network(problem), outcome)
    assert evaluation.complaints == ()
    assert complaints(problem, plan) == []
    assert plan.cost.total_usd_per_h == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(15, nightly=800))
@given(problems(limited=True).flatmap(with_device_memory))
def test_with_two_memories_the_bound_holds_too(problem: Problem) -> None:
    test_the_bound_holds_and_the_plan_too.hypothesis.inner_test(problem)  # type: ignore[attr-defined]


@settings(max_examples=examples(25, nightly=800))
@given(problems(limited=True))
def test_the_bound_holds_and_the_plan_too(problem: Problem) -> None:
    expected = optimum.cheapest(problem).cost
    outcome = _searched(problem)
    event("found" if outcome.found is not None else "none")

    assert outcome.bound <= (math.inf if expected is None else expected + _slack(expected))
    if outcome.found is not None:
        plan, _ = finish(Network(problem), outcome)
        assert evaluate(problem, plan).complaints == ()
        assert complaints(problem, plan) == []
        assert expected is not None
        assert plan.cost.total_usd_per_h >= expected - _slack(expected)
        assert (plan.certificate.gap == 0) == (plan.certificate.termination == "optimal")


@settings(max_examples=examples(15, nightly=400))
@given(st.one_of(problems(), exclusive_problems()), st.sampled_from((0.01, 0.1, 0.4)))
def test_the_gap_is_kept(problem: Problem, gap: float) -> None:
    expected = optimum.cheapest(problem).cost
    outcome = _searched(problem, gap)
    assert (outcome.found is None) == (expected is None)
    if expected is not None:
        assert outcome.bound <= expected + _slack(expected)
        assert expected <= outcome.value + _slack(expected)
        assert outcome.value * (1.0 - gap) <= outcome.bound + _slack(expected)


@settings(max_examples=examples(15, nightly=400))
@given(st.one_of(problems(), exclusive_problems()), st.integers(1, 40))
def test_time_that_ends_anywhere_proves_nothing_false(problem: Problem, ticks: int) -> None:
    expected = optimum.cheapest(problem).cost
    clock = itertools.count()
    outcome = _searched(problem, clock=Clock(lambda: float(next(clock)), float(ticks)))
    event(outcome.termination)
    assert outcome.bound <= (math.inf if expected is None else expected + _slack(expected))
    if outcome.found is not None:
        assert expected is not None
        assert outcome.value >= expected - _slack(expected)
        assert complaints(problem, finish(Network(problem), outcome)[0]) == []
