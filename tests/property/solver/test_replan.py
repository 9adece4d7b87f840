"""Re-planning against enumeration, on random small problems whose rates, fleets, targets and models changed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Clock,
    MigrationPrices,
    ModelRef,
    Network,
    Plan,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Verdict,
    evaluate,
    replan,
    rescore,
    solve,
)
from jellybean_solver.demand.settings import AssignmentSettings
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.migration.migration_cost import cheapest_migration
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.planning.solver import finish
from tests.brute_force.migration_optimum import Prices, cheapest_move, cheapest_move_of_larger, moved
from tests.plan_check import complaints
from tests.strategies import problems
from tests.support.examples import examples

GIB = 2.0**30


@st.composite
def replan_settings(draw: st.DrawFn) -> ReplanSettings:
    """Prices that matter beside a fleet of some USD per hour."""
    start = draw(st.sampled_from((0.0, 0.0, 0.1, 1.0, 7.0)))
    per_gib = draw(st.sampled_from((None, 0.0, 0.2 * GIB, 3.0 * GIB)))  # models of the strategies have a byte or two
    horizon_h = draw(st.sampled_from((1.0, 4.0, 24.0)))
    return ReplanSettings(MigrationPrices(start, per_gib), horizon_h, draw(st.sampled_from((0.0, 0.02, 0.3))))


@st.composite
def changed(draw: st.DrawFn, today: Problem) -> Problem:
    """What the problem may have been when the running plan was made."""
    scale = draw(st.sampled_from((0.3, 1.0, 1.0, 2.0)))
    pools = [replace(pool, count=pool.count + draw(st.integers(0, 2))) for pool in today.pools]
    if draw(st.integers(0, 3)) == 0:
        gone = replace(pools[0], name="gone", price_usd_per_h=0.05)
        pools.append(gone)
    operators = list(today.operators)
    if len(pools) > len(today.pools):  # what ran on the first pool ran on the one that is gone
        operators = [
            replace(
                operator,
                variants=tuple(
                    replace(variant, service={**variant.service, "gone": variant.service[pools[0].name]})
                    if pools[0].name in variant.service
                    else variant
                    for variant in operator.variants
                ),
            )
            for operator in operators
        ]
    if draw(st.integers(0, 4)) == 0:  # another file of a model
        first = operators[0]
        variants = tuple(replace(v, model=ModelRef("old.onnx", "00" * 32, 1.0)) for v in first.variants)
        operators[0] = replace(first, variants=variants)
    sources = tuple(replace(source, rate_per_s=source.rate_per_s * scale) for source in today.sources)
    slo = replace(today.slo, accuracy=today.slo.accuracy if draw(st.booleans()) else None)
    return replace(today, pools=tuple(pools), operators=tuple(operators), sources=sources, slo=slo)


def small(problem: Problem, pools: int, count: int, variants: int = 9) -> Problem:
    """Fewer workers and choices, so that enumeration ends."""
    operators = tuple(replace(operator, variants=operator.variants[:variants]) for operator in problem.operators)
    fewer = tuple(replace(pool, count=min(count, pool.count)) for pool in problem.pools[:pools])
    return replace(problem, operators=operators, pools=fewer)


def running(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    return plan


def case(
    data: st.DataObject, asked: ReplanSettings, pools: int, count: int, **few: int
) -> tuple[Problem, Plan, Prices]:
    """Today's problem, the plan that runs, and the oracle's prices."""
    made = data.draw(problems(max_operators=few.get("operators", 4), limited=data.draw(st.booleans())))
    today = small(made, pools, count, few.get("variants", 9))
    before = running(data.draw(changed(today)))
    plan = solve(today).plan
    if plan is not None and plan.cost.total_usd_per_h > 0.01 and data.draw(st.booleans()):
        budget = plan.cost.total_usd_per_h * data.draw(st.sampled_from((1.001, 1.1, 1.5)))
        today = replace(today, slo=replace(today.slo, budget_usd_per_h=budget))
    return today, before, Prices(asked.prices.start_usd, asked.prices.download_usd_per_gib, asked.horizon_h)


def right(
    today: Problem,
    before: Plan,
    asked: ReplanSettings,
    expected: float | None,
    search: SearchSettings = SearchSettings(),
) -> Replanned:
    """The decision and all its figures, against the oracle's optimum."""
    found = replan(today, before, asked, search)
    event(found.verdict.value)
    plan, score, broken = rescore(today, before)
    kept = score.cost.total_usd_per_h * asked.horizon_h
    assert found.running == plan
    assert found.broken == broken
    assert found.running_usd == pytest.approx(kept)
    if expected is None:
        assert found.best is None
        assert found.verdict is (Verdict.NONE if broken else Verdict.KEEP)
        assert found.infeasibility is not None or not broken
        return found
    assert found.best is not None
    assert found.migration is not None
    assert evaluate(today, found.best).complaints == ()
    assert complaints(today, found.best) == []
    assert found.best_usd == pytest.approx(expected, rel=1e-6, abs=1e-6 * asked.horizon_h)
    assert found.bound_usd == pytest.approx(expected, rel=1e-6, abs=1e-6 * asked.horizon_h)
    saved = kept - expected
    enough = saved > 1e-5 and saved > asked.least_saved_share * kept * (1 + 1e-4) + 1e-4
    short = saved < 1e-7 or saved < asked.least_saved_share * kept * (1 - 1e-4) - 1e-4
    if broken or enough:
        assert found.verdict is Verdict.REPLACE
    elif short:
        assert found.verdict is Verdict.KEEP
    return found


@settings(max_examples=examples(15, nightly=600))
@given(st.data(), replan_settings())
def test_replanning_equals_enumeration(data: st.DataObject, asked: ReplanSettings) -> None:
    today, before, prices = case(data, asked, 2, 2, operators=3, variants=2)
    found = right(today, before, asked, cheapest_move(today, before, prices))
    if found.best is not None and found.migration is not None:
        held: dict[tuple[frozenset[str], str], int] = {}
        for worker in found.best.workers:
            at = frozenset(worker.rates_per_s), worker.pool
            held[at] = held.get(at, 0) + 1
        least = moved(today, before, prices, dict(found.best.selection), held)
        assert found.migration.total_usd == pytest.approx(least, abs=1e-6)


def equals_a_program_worker_by_worker(data: st.DataObject, asked: ReplanSettings, search: SearchSettings) -> None:
    today, before, prices = case(data, asked, 4, 3)
    right(today, before, asked, cheapest_move_of_larger(today, before, prices), search)


@settings(max_examples=examples(15, nightly=600))
@given(st.data(), replan_settings())
def test_replanning_equals_a_program_worker_by_worker(data: st.DataObject, asked: ReplanSettings) -> None:
    equals_a_program_worker_by_worker(data, asked, SearchSettings())


@pytest.mark.parametrize(("columns", "sets"), [(0, 999), (999, 0)], ids=["by sets", "by workers"])
def test_both_exact_ways_to_match_workers(columns: int, sets: int) -> None:
    search = SearchSettings(assignment=AssignmentSettings(matching_columns=columns, matching_sets=sets))
    settings(max_examples=examples(10, nightly=400))(
        given(st.data(), replan_settings(), st.just(search))(equals_a_program_worker_by_worker)
    )()


def test_workers_that_are_only_arranged_have_a_true_bound() -> None:
    search = SearchSettings(assignment=AssignmentSettings(matching_columns=0, matching_sets=0))

    @settings(max_examples=examples(12, nightly=400))
    @given(st.data(), replan_settings())
    def check(data: st.DataObject, asked: ReplanSettings) -> None:
        today, before, prices = case(data, asked, 4, 3)
        expected = cheapest_move_of_larger(today, before, prices)
        found = replan(today, before, asked, search)
        assert (found.best is None) == (expected is None)
        if expected is None or found.best is None or found.best_usd is None:
            return
        slack = 1e-6 * max(asked.horizon_h, expected)
        assert evaluate(today, found.best).complaints == ()
        assert complaints(today, found.best) == []
        assert found.bound_usd <= expected + slack
        assert expected <= found.best_usd + slack
        assert (found.best.certificate.gap == 0) == (found.best_usd <= found.bound_usd + slack)

    check()


@settings(max_examples=examples(15, nightly=600))
@given(st.data(), replan_settings())
def test_a_large_problem_states_its_gap(data: st.DataObject, asked: ReplanSettings) -> None:
    today, before, prices = case(data, asked, 4, 3)
    expected = cheapest_move_of_larger(today, before, prices)
    network = Network(today)
    start = RunningPlan(network, before, asked.prices, asked.horizon_h)
    budget = math.inf if today.slo.budget_usd_per_h is None else today.slo.budget_usd_per_h
    clock, target = Clock(), today.slo.accuracy
    outcome = cheapest_large(network, target, fixed=None, gap=0.0, clock=clock, budget=budget, running=start)
    slack = 1e-6 * max(asked.horizon_h, expected or 0.0)
    assert outcome.bound * asked.horizon_h <= (math.inf if expected is None else expected + slack)
    if outcome.found is not None:
        plan, score = finish(network, outcome, start)
        assert score.complaints == ()
        assert expected is not None
        assert score.cost.total_usd_per_h * asked.horizon_h + start.migration(plan).total_usd >= expected - slack
        event("optimal" if plan.certificate.gap == 0 else "gap")


@settings(max_examples=examples(10, nightly=300))
@given(problems(), replan_settings())
def test_an_unchanged_problem_keeps_its_plan(problem: Problem, asked: ReplanSettings) -> None:
    before = running(problem)
    found = replan(problem, before, asked)
    assert found.verdict is Verdict.KEEP
    assert found.broken == ()
    assert found.migration is not None
    assert found.best_usd == pytest.approx(found.running_usd, rel=1e-6, abs=1e-6)
    assert cheapest_migration(before, before, asked.prices).loads == ()
    if asked.prices.start_usd > 0:
        assert found.migration.loads == ()
