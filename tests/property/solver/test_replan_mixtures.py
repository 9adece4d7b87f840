"""Re-planning of mixtures and of plans that bear losses, against a program worker by worker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Independent,
    LossKind,
    Objective,
    Plan,
    Pool,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Sharing,
    Slo,
    Variant,
    Verdict,
    evaluate,
    replan,
    rescore,
    solve,
)
from jellybean_solver.demand.settings import AssignmentSettings
from jellybean_solver.mixture.seats import TIE
from jellybean_solver.model.loss import REHEARSED
from tests import plan_check
from tests.brute_force import mixture_migration_optimum, mixture_optimum, optimum
from tests.brute_force.migration_optimum import Prices
from tests.property.solver.test_replan import changed, replan_settings
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples
from tests.support.small_problems import operator, problem, variant

LITTLE = 1e-6
MIX_GAP = 2e-4  # as in test_mixtures.py
REHEARSAL = 1.01  # a few requests rehearse fallbacks, whose traffic the programs leave out


@st.composite
def targets(draw: st.DrawFn) -> Slo:
    """Of plans that mix variants, bear losses, or both. The mean is replaced, by `mean_between`."""
    mean = draw(st.sampled_from((None, 15.0, 40.0, 70.0)))
    penalty = draw(st.sampled_from((None, None, 0.02, 0.3))) if mean is not None else None
    kinds: list[LossKind] = []
    if mean is None or draw(st.integers(0, 2)) == 0:
        kinds = draw(st.lists(st.sampled_from((LossKind.WORKER, LossKind.LINK)), min_size=1, max_size=2, unique=True))
    return Slo(mean_accuracy=mean, penalty_usd_per_h=penalty, survives=tuple(kinds))


@st.composite
def busy_problems(draw: st.DrawFn) -> Problem:
    """One or two operators whose better variants keep several workers busy, so that plans mix them."""
    pools = [
        Pool(
            *(f"p{index}", draw(st.sampled_from(("edge", "cloud"))), draw(st.integers(2, 5))),
            *(draw(st.sampled_from((0.3, 1.0, 1.1, 2.5))), draw(st.sampled_from(Sharing))),
            draw(st.sampled_from((None, 2.0, 3.0))),
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    names = ("first", "second")[: draw(st.integers(1, 2))]
    operators = [
        operator(name, ["camera" if name == "first" else "first"], *draw(_variants(name, pools, names)))
        for name in names
    ]
    accuracies = {one.name: {v.name: 60.0 + 10.0 * at for at, v in enumerate(one.variants)} for one in operators}
    return problem(
        *operators,
        pools=pools,
        rate_per_s=draw(st.sampled_from((3.0, 7.0, 10.0))),
        message_bytes=1e3,
        accuracy=Independent(accuracies),
    )


@st.composite
def _variants(draw: st.DrawFn, name: str, pools: list[Pool], names: tuple[str, ...]) -> list[Variant]:
    """Each better variant takes longer, at another rate in every pool."""
    found: list[Variant] = []
    load_s = draw(st.sampled_from((0.05, 0.1, 0.2)))
    for index in range(draw(st.integers(2, 3))):
        loads = {pool.name: load_s * draw(st.sampled_from((0.5, 1.0, 1.0))) for pool in pools}
        sent = {"second": 1e3 * (1 + index)} if name == "first" and len(names) > 1 else {}
        memory = draw(st.sampled_from((1.0, 1.0, 2.0)))
        found.append(variant(f"v{index}", loads, sent, {pool.name: memory for pool in pools}))
        load_s *= draw(st.sampled_from((2.0, 1.5, 3.0)))
    return found


def case(data: st.DataObject, slo: Slo) -> tuple[Problem, Plan]:
    """Today's problem, and the plan that runs: of another day, with any targets."""
    if data.draw(st.booleans()):
        made = data.draw(busy_problems())
    else:
        made = data.draw(problems(max_operators=2 if slo.survives else 3, limited=data.draw(st.booleans())))
    if slo.survives:  # else few have a plan
        made = replace(made, pools=tuple(replace(pool, count=pool.count + 1) for pool in made.pools))
    if slo.mean_accuracy is not None:
        slo = replace(slo, mean_accuracy=mean_between(made, slo.mean_accuracy / 100.0))
    today = replace(made, slo=slo)
    other = data.draw(st.sampled_from((slo, slo, Slo(), Slo(mean_accuracy=70.0))))
    before = solve(replace(data.draw(changed(today)), slo=other), explained=False).plan
    assume(before is not None)
    assert before is not None
    return today, before


def mean_between(problem: Problem, part: float) -> float:
    """A mean accuracy such a part of the way from the least to the most accurate selection."""
    known = [optimum.accuracy(problem, selection) for selection in optimum.selections(problem)]
    values = [value for value in known if value is not None]
    return min(values, default=0.0) + part * (max(values, default=100.0) - min(values, default=0.0))


def prices_of(asked: ReplanSettings) -> Prices:
    return Prices(asked.prices.start_usd, asked.prices.download_usd_per_gib, asked.horizon_h)


def checked(
    today: Problem, before: Plan, asked: ReplanSettings, search: SearchSettings = SearchSettings()
) -> Replanned:
    """The decision, whose running plan, best plan and migration an independent checker has looked at."""
    found = replan(today, before, asked, search)
    event(f"{found.verdict.value}, mixes {found.best is not None and found.best.mixes}")
    plan, _, broken = rescore(today, before)
    assert (found.running, found.broken) == (plan, broken)
    if found.best is None or found.migration is None:
        return found
    assert not evaluate(today, found.best).complaints
    assert not plan_check.complaints(today, found.best)
    least = mixture_migration_optimum.least_migration(today, before, found.best, prices_of(asked))
    assert found.migration.total_usd == pytest.approx(least, abs=1e-6)
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=600))
@given(st.data(), targets(), replan_settings())
def test_replanning_of_mixtures_equals_a_program_worker_by_worker(
    data: st.DataObject, slo: Slo, asked: ReplanSettings
) -> None:
    today, before = case(data, slo)
    slo = today.slo
    expected = mixture_migration_optimum.cheapest(today, before, prices_of(asked))
    found = checked(today, before, asked)
    assert (found.best is None) == (expected is None)
    counted = found.running.cost.total_usd_per_h + slo.penalty(found.running.accuracy)
    assert found.running_usd == pytest.approx(counted * asked.horizon_h)
    if expected is None:
        assert found.verdict is (Verdict.NONE if found.broken else Verdict.KEEP)
        return
    assert found.best is not None
    assert found.best_usd is not None
    slack = LITTLE * max(asked.horizon_h, expected)
    if found.best.fallbacks:  # what rehearses them may be more accurate
        slack += 100.0 * REHEARSED * (slo.penalty_usd_per_h or 0.0) * asked.horizon_h
    assert found.bound_usd <= expected + slack
    assert found.best_usd >= expected - slack
    moved = found.migration is not None and found.migration.total_usd > 0
    event(f"optimal {found.best.certificate.is_optimal}, moves {moved}, fallbacks {bool(found.best.fallbacks)}")
    if found.best.certificate.is_optimal:
        assert found.best_usd == pytest.approx(expected, rel=MIX_GAP, abs=1e-5 * asked.horizon_h + slack)
    most = REHEARSAL if found.best.fallbacks else 1.0 + MIX_GAP
    assert found.best_usd <= expected * most + 1e-3 * asked.horizon_h
    if found.broken:
        assert found.verdict is Verdict.REPLACE
    elif found.saved_usd is not None and found.running_usd > 0:
        saves = found.saved_usd / found.running_usd
        if saves > asked.least_saved_share + 1e-4:
            assert found.verdict is Verdict.REPLACE
        elif saves < asked.least_saved_share - 1e-4 or saves < 0:
            assert found.verdict is Verdict.KEEP


@pytest.mark.timeout(7200 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=300))
@given(st.data(), targets(), replan_settings())
def test_loads_that_are_only_counted_by_replicas_have_a_true_bound(
    data: st.DataObject, slo: Slo, asked: ReplanSettings
) -> None:
    today, before = case(data, slo)
    expected = mixture_migration_optimum.cheapest(today, before, prices_of(asked))
    found = checked(today, before, asked, SearchSettings(assignment=AssignmentSettings(matching_sets=0)))
    assert (found.best is None) == (expected is None)
    if expected is None or found.best is None or found.best_usd is None:
        return
    slack = LITTLE * max(asked.horizon_h, expected)
    if found.best.fallbacks:
        slack += 100.0 * REHEARSED * (today.slo.penalty_usd_per_h or 0.0) * asked.horizon_h
    assert found.bound_usd <= expected + slack
    assert found.best_usd >= expected - slack
    if found.best.certificate.is_optimal:
        assert found.best_usd == pytest.approx(expected, rel=MIX_GAP, abs=1e-5 * asked.horizon_h + slack)


@pytest.mark.timeout(7200 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=300))
@given(st.data(), st.sampled_from((None, 0.5, 2.0, 6.0)), replan_settings())
def test_the_most_accurate_plan_replaces_one_with_more_errors(
    data: st.DataObject, budget: float | None, asked: ReplanSettings
) -> None:
    today, before = case(data, Slo(budget_usd_per_h=budget))
    today = replace(today, objective=Objective.MEAN_ACCURACY)
    expected = mixture_optimum.best(today, most_accurate=True)
    found = checked(today, before, asked)
    assert (found.best is None) == (expected is None)
    if expected is None or found.best is None or found.accuracy_bound is None:
        assert found.verdict is (Verdict.NONE if found.broken else Verdict.KEEP)
        return
    assert found.accuracy_bound >= expected - 1e-3
    assert found.best.accuracy is not None
    assert found.best.accuracy <= expected + 1e-3
    assert found.best.accuracy >= expected - 2 * TIE or not found.best.certificate.is_optimal
    errors, gained = 100.0 - (found.running.accuracy or 0.0), found.gained_points
    assert gained == pytest.approx(found.best.accuracy - (found.running.accuracy or 0.0))
    if found.broken or (gained > TIE and gained > asked.least_saved_share * errors * 1.0001):
        assert found.verdict is Verdict.REPLACE
    elif gained < -TIE:
        assert found.verdict is Verdict.KEEP
