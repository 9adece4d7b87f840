"""Several workflows of which some may mix variants, against one program over everything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    MigrationPrices,
    Problem,
    ReplanSettings,
    Slo,
    combine_workflows,
    evaluate,
    from_document,
    replan,
    solve,
    to_document,
)
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.deadline.settings import QUICK_SETTINGS
from jellybean_solver.model.left_out import served
from jellybean_solver.model.multi_workflow import on_scale_of
from jellybean_solver.simulation.group_simulation import GroupSimulation
from tests import plan_check
from tests.brute_force import mixture_migration_optimum, mixture_optimum
from tests.brute_force.migration_optimum import Prices
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import measured, pairs

LITTLE = 1e-6
MIX_GAP = 2e-4  # relative: programs are solved to 1e-5, and the reference to its own tolerances

budgets = st.sampled_from((None, None, None, 1.0, 4.0))
worths = st.sampled_from((None, None, None, 0.2, 1.0, 5.0))
slos = st.builds(
    Slo,
    accuracy=st.sampled_from((None, None, None, 45.0)),
    mean_accuracy=st.sampled_from((55.0, 70.0, 80.0, 88.0, 95.0)),
    penalty_usd_per_h=st.sampled_from((None, None, 0.01, 0.3)),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, dict[str, Problem]]:
    """Two workflows together, and one by one; the first mixes variants."""
    pair = draw(pairs(limited=draw(st.booleans())))
    if draw(st.booleans()):
        pair = measured(pair[0]), measured(pair[1])
    roomy = tuple(replace(pool, count=2 * pool.count + 1) for pool in pair[0].pools)  # else few have such a plan
    first, second = draw(slos), draw(slos)
    if draw(st.booleans()):
        second = Slo(accuracy=second.accuracy)
    problems = {"a": replace(pair[0], slo=first, pools=roomy), "b": replace(pair[1], slo=second, pools=roomy)}
    both = combine_workflows("both", problems, draw(budgets))
    workflows = tuple(replace(one, worth_usd_per_h=draw(worths)) for one in both.workflows)
    return replace(both, workflows=workflows), problems


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=1000))
@given(cases())
def test_the_cheapest_plan_is_that_of_one_program_over_everything(case: tuple[Problem, dict[str, Problem]]) -> None:
    both, problems = case
    expected = mixture_optimum.best_of_several(both, problems)
    solution = solve(both, explained=False)
    event(f"{solution.status}, mixes {solution.plan is not None and solution.plan.mixes}")

    nothing = math.fsum(math.inf if one.worth_usd_per_h is None else one.worth_usd_per_h for one in both.workflows)
    if solution.plan is None:
        assert expected is None or nothing <= expected * (1 + LITTLE) + LITTLE  # to leave out everything is no plan
        return
    assert expected is not None
    plan = solution.plan
    penalties = math.fsum(one.slo.penalty(one.accuracy) for one in plan.workflows)
    cost = plan.cost.total_usd_per_h + penalties + math.fsum(one.worth_usd_per_h for one in plan.left_out)
    assert plan.certificate.penalty_usd_per_h == pytest.approx(penalties)
    assert evaluate(both, plan).complaints == ()
    assert plan_check.complaints(served(both, plan), plan) == []
    assert from_document(to_document(plan)) == plan
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert cost >= expected * (1 - LITTLE) - LITTLE
    if plan.certificate.is_optimal:
        assert cost == pytest.approx(expected, rel=MIX_GAP, abs=1e-5)
    parts = math.fsum(workflow.cost.total_usd_per_h for workflow in plan.workflows)
    assert parts == pytest.approx(plan.cost.total_usd_per_h, rel=1e-6, abs=1e-9)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=300))
@given(cases(), st.sampled_from((0.05, 0.5, 5.0, 50.0)), st.booleans())
def test_who_is_served_is_in_time(
    case: tuple[Problem, dict[str, Problem]], longest_s: float, is_one_targeted: bool
) -> None:
    """A plan in time costs at least as much, and leaves out only what may be."""
    free, _ = case
    targets = (None if is_one_targeted else 0.5 * longest_s, longest_s)
    workflows = tuple(
        replace(one, slo=replace(one.slo, latency_p99_s=target_s), worth_usd_per_h=one.worth_usd_per_h or 7.0)
        for one, target_s in zip(free.workflows, targets, strict=True)
    )
    both = replace(free, workflows=workflows)
    cheapest = solve(both, explained=False).plan
    plan = solve(both, explained=False, deadline=Deadline(longest_s, settings=QUICK_SETTINGS)).plan
    event(f"cheapest {cheapest is not None}, in time {plan is not None}")
    if plan is None or cheapest is None:
        assert plan is None
        return
    assert evaluate(both, plan).complaints == ()
    assert {one.name for one in plan.workflows} | {one.name for one in plan.left_out} == {"a", "b"}
    assert plan.certificate.objective >= cheapest.certificate.bound * (1 - LITTLE) - LITTLE
    found = GroupSimulation(plan).slowest_s() if plan.deadline_s is not None else 0.0
    assert on_scale_of(both, plan, found) <= longest_s * (1 + LITTLE)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(15, nightly=500))
@given(cases(), st.sampled_from((0.0, 0.0, 0.1, 2.0)), st.sampled_from((0.5, 1.0, 2.0)), st.tuples(worths, worths))
def test_who_is_served_is_weighed_against_a_running_plan(
    case: tuple[Problem, dict[str, Problem]], start_usd: float, scale: float, before_worths: tuple[float | None, ...]
) -> None:
    today, _ = case
    sources = tuple(replace(source, rate_per_s=scale * source.rate_per_s) for source in today.sources)
    workflows = tuple(
        replace(one, worth_usd_per_h=worth) for one, worth in zip(today.workflows, before_worths, strict=True)
    )
    before = solve(replace(today, sources=sources, workflows=workflows), explained=False).plan
    assume(before is not None)
    assert before is not None
    asked = ReplanSettings(MigrationPrices(start_usd, 0.0), 4.0)
    found = replan(today, before, asked)
    fresh = solve(today, explained=False).plan
    event(f"{found.verdict.value}, left out {0 if found.best is None else len(found.best.left_out)}")
    if found.best is None or found.best_usd is None or fresh is None:
        nothing = math.fsum(math.inf if one.worth_usd_per_h is None else one.worth_usd_per_h for one in today.workflows)
        moving = math.inf if start_usd else 0.0  # with what must be loaded it may be best to leave out everything
        known = math.inf if fresh is None else fresh.certificate.objective
        assert math.isinf(known) or found.best is not None or nothing <= known * (1 + LITTLE) + LITTLE + moving
        return
    assert evaluate(today, found.best).complaints == ()
    assert plan_check.complaints(served(today, found.best), found.best) == []
    assert found.bound_usd <= found.best_usd * (1 + LITTLE) + LITTLE
    moved = mixture_migration_optimum.least_migration(today, before, fresh, Prices(start_usd, 0.0, 4.0))
    assert found.best_usd <= (fresh.certificate.objective * 4.0 + moved) * (1 + MIX_GAP) + 1e-4
    assert found.best_usd >= fresh.certificate.bound * 4.0 * (1 - LITTLE) - LITTLE
