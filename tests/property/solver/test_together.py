"""Two workflows on one fleet against enumeration: the accuracy of each by itself, the workers together."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Clock,
    Network,
    Problem,
    Slo,
    combine_workflows,
    evaluate,
    from_document,
    p99_by_workflow,
    solve,
    to_document,
)
from jellybean_solver.fleet.dispatch import cheapest_large
from jellybean_solver.fleet.proposal import propose
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.planning.requirements import scaled
from jellybean_solver.planning.solver import finish
from tests.brute_force import deadline_optimum, optimum
from tests.plan_check import complaints
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import Pair, pairs

IDLE = 1e-6  # of the rates: one worker does for all
NEAR = 0.06  # of a time: the closed form is never below it, and no further above
MOST_CHOICES = 20_000  # of places and variants, so that enumeration ends


def cheapest_pair(pair: Pair, both: Problem) -> float | None:
    """By enumeration of both selections; only names are taken from `both`."""
    accurate = [[s for s in optimum.selections(one) if _meets(one, s)] for one in pair]
    costs = (
        optimum.cheapest_of_larger(both, _called("a", first) | _called("b", second))
        for first, second in itertools.product(*accurate)
    )
    return min((cost for cost in costs if cost is not None), default=None)


def _meets(problem: Problem, selection: dict[str, str]) -> bool:
    target, value = problem.slo.accuracy, optimum.accuracy(problem, selection)
    return target is None or (value is not None and value >= target - 1e-9)


def _called(workflow: str, selection: dict[str, str]) -> dict[str, str]:
    return {f"{workflow}/{name}": variant for name, variant in selection.items()}


@settings(max_examples=examples(25, nightly=800))
@given(pairs())
def test_two_are_planned_exactly(pair: Pair) -> None:
    _is_exact(pair)


@settings(max_examples=examples(25, nightly=800))
@given(pairs(limited=True))
def test_two_with_memory_bandwidth_and_residency_too(pair: Pair) -> None:
    _is_exact(pair)


def _is_exact(pair: Pair) -> None:
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    expected = cheapest_pair(pair, both)
    solution = solve(both, explained=False)
    event(solution.status)
    if expected is None:
        assert solution.status == "infeasible"
        return
    plan = solution.plan
    assert plan is not None
    assert plan.cost.total_usd_per_h == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert plan.certificate.gap == 0
    assert evaluate(both, plan).complaints == ()
    assert complaints(both, plan) == []
    assert from_document(to_document(plan)) == plan
    for one, planned in zip(pair, plan.workflows, strict=True):
        own = {
            name.partition("/")[2]: v for name, v in plan.selection.items() if plan.workflow_of(name) == planned.name
        }
        known = optimum.accuracy(one, own)
        assert planned.accuracy == (None if known is None else pytest.approx(known))
        assert _meets(one, own)
    parts = math.fsum(workflow.cost.total_usd_per_h for workflow in plan.workflows)
    assert parts == pytest.approx(plan.cost.total_usd_per_h, rel=1e-9, abs=1e-9)


@settings(max_examples=examples(15, nightly=400))
@given(pairs())
def test_the_way_of_large_problems_is_exact_too(pair: Pair) -> None:
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    expected = cheapest_pair(pair, both)
    network, target = Network(both), both.accuracy_target
    outcome = cheapest_large(network, target, fixed=None, gap=0.0, clock=Clock())
    bound = propose(network, target, SearchLimits(0.0)).bound
    if expected is None:
        assert outcome.found is None
        return
    assert outcome.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert max(outcome.bound, bound) <= expected + 1e-6 * max(1.0, expected)
    plan, evaluation = finish(network, outcome)
    assert evaluation.complaints == ()
    assert complaints(both, plan) == []


@settings(max_examples=examples(10, nightly=200))
@given(pairs())
def test_together_never_costs_more_than_one_after_the_other(pair: Pair) -> None:
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    first = solve(single_workflow(both, both.workflows[0]), explained=False).plan
    if first is None:
        assert solve(both, explained=False).plan is None
        return
    used = {pool.name: sum(worker.pool == pool.name for worker in first.workers) for pool in both.pools}
    left = tuple(replace(pool, count=pool.count - used[pool.name]) for pool in both.pools)
    second = solve(replace(single_workflow(both, both.workflows[1]), pools=left), explained=False).plan
    plan = solve(both, explained=False).plan
    if second is not None:
        assert plan is not None
        apart = first.cost.total_usd_per_h + second.cost.total_usd_per_h
        assert plan.cost.total_usd_per_h <= apart + 1e-6 * max(1.0, apart)


@settings(max_examples=examples(10, nightly=200))
@given(pairs())
def test_a_budget_is_one_of_both(pair: Pair) -> None:
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    plan = solve(both, explained=False).plan
    assume(plan is not None and plan.cost.total_usd_per_h >= 0.01)
    assert plan is not None
    cost = plan.cost.total_usd_per_h
    assert solve(replace(both, slo=Slo(budget_usd_per_h=1.01 * cost)), explained=False).plan is not None
    refused = solve(replace(both, slo=Slo(budget_usd_per_h=0.99 * cost)))
    assert refused.plan is None
    assert refused.infeasibility is not None
    assert refused.infeasibility.breaches


@st.composite
def hurried_pairs(draw: st.DrawFn) -> tuple[Pair, Problem]:
    """At next to no load, each with a p99 that some of its own choices keep and others break; one may have none."""
    pair = draw(pairs(limited=True))
    idle = [scaled(one, IDLE) for one in pair]
    hurried = []
    for one in idle:
        times = sorted({round(choice.slow_s, 9) for choice in deadline_optimum.choices(one)})
        assume(times)
        within_s = draw(st.sampled_from(times)) * draw(st.sampled_from((0.9, 1.0 + 2 * NEAR)))
        assume(within_s > 1e-3)
        hurried.append(replace(one, slo=replace(one.slo, latency_p99_s=within_s, budget_usd_per_h=None)))
    if draw(st.integers(0, 3)) == 0:
        hurried[1] = replace(hurried[1], slo=replace(hurried[1].slo, latency_p99_s=None))
    first, second = hurried
    both = combine_workflows("both", {"a": first, "b": second})
    sizes = [len(o.variants) * sum(pool.count for pool in both.pools) for o in both.operators]
    assume(math.prod(sizes) <= MOST_CHOICES)
    return (first, second), both


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=1000))
@given(hurried_pairs())
def test_two_keep_their_own_p99s_where_nothing_queues(drawn: tuple[Pair, Problem]) -> None:
    """Between the cheapest choice that may be in time and the cheapest that surely is, both by enumeration."""
    pair, both = drawn
    accurate = [[s for s in optimum.selections(one) if _meets(one, s)] for one in pair]
    chosen = [_called("a", first) | _called("b", second) for first, second in itertools.product(*accurate)]
    found = list(deadline_optimum.choices(both, chosen))
    least = min((choice.cost for choice in found if choice.fast_s <= 1 + 1e-6), default=None)
    surely = min((choice.cost for choice in found if choice.slow_s <= 1 / (1 + NEAR)), default=None)

    solution = solve(both, p99_s=both.deadline_s)
    event(solution.status)

    if solution.plan is None:
        assert solution.infeasibility is not None
        proven = "even with zero queueing delay" in solution.infeasibility.reasons[0]
        event(f"proven {proven}, there is one {surely is not None}")
        assert surely is None or not (proven or math.isinf(solution.infeasibility.least_usd_per_h))
        return
    assert least is not None
    for workflow, p99_s in p99_by_workflow(solution.plan).items():
        asked_s = {w.name: w.slo.latency_p99_s for w in both.workflows}[workflow]
        assert asked_s is None or p99_s <= asked_s * (1 + 1e-9)
    assert evaluate(both, solution.plan).complaints == ()
    assert complaints(both, solution.plan) == []
    cost, proof = solution.plan.cost.total_usd_per_h, solution.plan.certificate
    assert cost >= least * (1 - 1e-6) - 1e-6
    assert surely is None or proof.bound <= surely * (1 + 1e-6) + 1e-6
    event(f"cheapest {surely is not None and cost <= surely * (1 + 1e-6) + 1e-6}")
