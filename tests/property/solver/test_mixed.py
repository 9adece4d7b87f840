"""All features in one problem against enumeration: the costs under load, and deadlines where nothing queues."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Clock,
    MigrationPrices,
    Network,
    Problem,
    ReplanSettings,
    Solution,
    evaluate,
    from_document,
    replan,
    solve,
    to_document,
)
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.variant_ratios import plain, settled
from jellybean_solver.planning.requirements import scaled
from jellybean_solver.planning.solver import finish
from tests import plan_check, site_check
from tests.brute_force import deadline_optimum, optimum
from tests.brute_force import rates as reference_rates
from tests.strategies import mixed_problems
from tests.support.examples import NIGHTLY, examples

IDLE = 1e-6  # of the rates: one worker does for all
NEAR = 0.06  # of a time: the closed form is never below it, and no further above
MOST_CHOICES = 20_000  # of places and variants, so that enumeration ends


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=1000))
@given(mixed_problems(), st.sampled_from((0.6, 0.9, 1.001)), st.sampled_from((0.5, 0.9, 1.2)))
def test_everything_at_once_equals_enumeration(problem: Problem, share: float, idle_share: float) -> None:
    expected = _within_budget(problem, optimum.cheapest(problem).cost)
    solution = solve(problem, explained=False)
    event(f"{solution.status}, ratios vary {bool(problem.varying)}, sites {max(problem.sites.values()) > 1}")

    assert (solution.plan is None) == (expected is None)
    if expected is not None:
        _is_the_optimum(problem, solution, expected)
        _a_deadline_costs_no_less(problem, solution, share)
    if math.prod(len(o.variants) * sum(p.count for p in problem.pools) for o in problem.operators) <= MOST_CHOICES:
        _idle_it_keeps_deadlines(scaled(problem, IDLE), idle_share)


def _within_budget(problem: Problem, cost: float | None) -> float | None:
    budget = problem.slo.budget_usd_per_h
    return None if cost is None or (budget is not None and cost > budget * (1 + 1e-6)) else cost


def _is_the_optimum(problem: Problem, solution: Solution, expected: float) -> None:
    plan = solution.plan
    assert plan is not None
    assert solution.status == plan.certificate.termination == "optimal"
    assert plan.certificate.gap == 0
    assert plan.cost.total_usd_per_h == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert evaluate(problem, plan).complaints == ()
    assert plan_check.complaints(problem, plan) == []
    assert site_check.complaints(problem, plan) == []
    assert from_document(to_document(plan)) == plan
    rates = reference_rates.rates(problem, plan.selection)
    for operator in plan.operators:
        assert operator.rate_per_s == pytest.approx(rates[operator.name])
        for edge in operator.inputs:
            per_run = reference_rates.rows(problem, edge, plan.selection)
            assert edge.ratio == pytest.approx(rates[operator.name] / rates[edge.upstream])
            assert edge.kind.value != "fan_out" or edge.ratio == pytest.approx(per_run)


def _a_deadline_costs_no_less(problem: Problem, cheapest: Solution, share: float) -> None:
    """And nothing where the cheapest plan keeps it."""
    if cheapest.plan is None or math.isinf(now_s := latency(cheapest.plan).p99_s) or now_s == 0.0:
        return
    least = cheapest.plan.cost.total_usd_per_h
    timely = solve(problem, p99_s=share * now_s)
    event(f"{share:g} of its p99: {timely.status}")
    if share > 1.0 and latency(cheapest.plan).meets(share * now_s):
        assert timely.plan == cheapest.plan
    if timely.plan is None:
        return
    assert latency(timely.plan).meets(share * now_s)
    assert evaluate(problem, timely.plan).complaints == ()
    assert plan_check.complaints(problem, timely.plan) == []
    cost, proof = timely.plan.cost.total_usd_per_h, timely.plan.certificate
    assert cost >= least * (1 - 1e-6) - 1e-6
    assert proof.bound <= cost * (1 + 1e-9)
    assert proof.gap == pytest.approx(1 - proof.bound / cost if cost > 0 else 0.0, abs=1e-6)


def _idle_it_keeps_deadlines(problem: Problem, share: float) -> None:
    """As `test_brute_force_latency`: between the cheapest that may be in time and the cheapest that surely is."""
    times = sorted(choice.slow_s for choice in deadline_optimum.choices(problem))
    if not times or (within_s := share * times[len(times) // 2]) < 1e-3:
        return
    least = deadline_optimum.cheapest(problem, within_s * (1 + 1e-6), surely=False)
    surely = deadline_optimum.cheapest(problem, within_s / (1 + NEAR), surely=True)
    solution = solve(problem, p99_s=within_s)
    event(f"idle: {solution.status}")
    if solution.plan is None:
        assert solution.infeasibility is not None
        assert surely is None or "even with zero queueing delay" not in solution.infeasibility.reasons[0]
        return
    cost, proof = solution.plan.cost.total_usd_per_h, solution.plan.certificate
    assert least is not None
    assert cost >= least * (1 - 1e-6) - 1e-6
    assert surely is None or proof.bound <= surely * (1 + 1e-6) + 1e-6
    assert latency(solution.plan).meets(within_s)
    assert evaluate(problem, solution.plan).complaints == ()


@pytest.mark.timeout(1800 if NIGHTLY else 300)
@settings(max_examples=examples(12, nightly=500))
@given(mixed_problems())
def test_the_fleet_search_on_varying_ratios_is_bounded_by_enumeration(problem: Problem) -> None:
    """The fleet search, whose program knows the ratios of all variants: its bound holds, and its plan is one."""
    network = Network(problem)
    assume(problem.varying and all(network.runnable.values()))
    cost = optimum.cheapest(problem).cost
    outcome = cheapest_large(network, problem.slo.accuracy, fixed=None, gap=0.0, clock=Clock())
    event(f"found {outcome.found is not None}, finished {outcome.is_conclusive}")

    if cost is not None:
        assert outcome.bound <= cost * (1 + 1e-6) + 1e-6
    if outcome.is_conclusive:
        assert (outcome.found is None) == (cost is None)
    if outcome.found is not None:
        assert cost is not None
        plan, score = finish(network, outcome)
        assert plan.cost.total_usd_per_h >= cost * (1 - 1e-6) - 1e-6
        assert outcome.bound <= plan.cost.total_usd_per_h * (1 + 1e-6) + 1e-6
        assert set(score.violations) == set()
        assert plan_check.complaints(problem, plan) == []


@pytest.mark.timeout(1800 if NIGHTLY else 300)
@settings(max_examples=examples(6, nightly=300))
@given(mixed_problems(), st.sampled_from((0.5, 1.0, 2.0)))
def test_the_union_of_the_problems_with_plain_ratios(problem: Problem, scale: float) -> None:
    """Each choice of ratios by itself, also when going on from a running plan; the least ratios bound them all."""
    assume(problem.varying)
    free = replace(problem, slo=replace(problem.slo, budget_usd_per_h=None))
    choices = {tuple(plain(one).edges): one for one in _choices(free)}
    apart = [solve(plain(one), explained=False).plan for one in choices.values()]
    costs = [plan.cost.total_usd_per_h for plan in apart if plan is not None]
    whole = solve(free, explained=False).plan

    assert (whole.cost.total_usd_per_h if whole is not None else None) == (
        pytest.approx(min(costs), rel=1e-6, abs=1e-6) if costs else None
    )
    bound = solve(plain(free), explained=False).plan
    assert whole is None or (
        bound is not None and bound.cost.total_usd_per_h <= whole.cost.total_usd_per_h * (1 + 1e-6) + 1e-6
    )
    before = solve(scaled(free, scale), explained=False).plan
    if before is None:
        return
    terms = ReplanSettings(MigrationPrices(0.1, 2.0**30 * 0.2), 4.0, 0.02)
    together, each = replan(free, before, terms), [replan(plain(one), before, terms) for one in choices.values()]
    found = [one.best_usd for one in each if one.best_usd is not None]
    assert together.best_usd == (pytest.approx(min(found), rel=1e-5, abs=1e-5) if found else None)


def _choices(problem: Problem) -> list[Problem]:
    return [settled(problem, selection) for selection in optimum.selections(problem)]
