"""A workflow added to a plan of another one: never cheaper than the optimum of both, never dearer than on free workers.

Both limits are found by enumeration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings

from benchmarks.unlike.sites import unlike_sites
from jellybean_solver import (
    Plan,
    Problem,
    add_workflows,
    combine_workflows,
    evaluate,
    from_document,
    restricted,
    solve,
    to_document,
)
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.property.solver.test_together import cheapest_pair
from tests.support.examples import examples
from tests.support.pairs import Pair, pairs

NEAR = 1e-6


def _adds(pair: Pair) -> None:
    both = combine_workflows("both", {"a": pair[0], "b": pair[1]})
    before = solve(restricted(both, {"a"}), explained=False).plan
    assume(before is not None)
    assert before is not None
    added = add_workflows(both, before)
    assert (added.kept.workflows, added.kept.new) == (("a",), ("b",))
    plan = added.solution.plan
    alone = _cheapest_on_free_workers(both, pair[1], before)
    least = cheapest_pair(pair, both)
    event(f"added {plan is not None}, alone {alone is not None}, both {least is not None}")
    if plan is None:
        assert alone is None
        return
    assert least is not None
    cost = plan.cost.total_usd_per_h
    assert cost >= least - NEAR * max(1.0, least)
    if alone is not None:
        assert cost <= before.cost.total_usd_per_h + alone + NEAR * max(1.0, cost)
    assert complaints(both, plan) == []
    assert evaluate(both, plan).complaints == ()
    assert (plan.certificate.keeps, plan.certificate.gap) == (1, 0.0)
    assert not plan.certificate.is_optimal
    assert from_document(to_document(plan)) == plan
    assert _part(plan, "a") == _part(before, "a")


def _cheapest_on_free_workers(both: Problem, problem: Problem, before: Plan) -> float | None:
    """The least cost of a workflow on the workers, and with the bandwidth, that a plan does not use at all."""
    used = Counter(worker.pool for worker in before.workers)
    pools = tuple(replace(pool, count=pool.count - used[pool.name]) for pool in problem.pools)
    crossed = {flow.tiers for flow in evaluate(restricted(both, {"a"}), before).flows if flow.crosses}
    links = tuple(
        link
        for link in problem.links
        if link.bandwidth_bytes_per_s is None or (link.upstream_tier, link.downstream_tier) not in crossed
    )
    return optimum.cheapest(replace(problem, pools=pools, links=links)).cost


def _part(plan: Plan, workflow: str) -> tuple[object, ...]:
    """What a workflow has of a plan: operators, routes, and its rates on each worker."""
    owned = [operator for operator in plan.operators if plan.workflow_of(operator.name) == workflow]
    names = {operator.name for operator in owned}
    routes = [route for route in plan.routes if names & route.workers.keys()]
    rates = {
        worker.name: own
        for worker in plan.workers
        if (own := {name: rate for name, rate in worker.rates_per_s.items() if name in names})
    }
    return owned, routes, rates


@settings(max_examples=examples(25, nightly=500))
@given(pairs())
def test_a_workflow_is_added_to_another(pair: Pair) -> None:
    _adds(pair)


@settings(max_examples=examples(25, nightly=500))
@given(pairs(limited=True))
def test_with_memory_bandwidth_and_residency_too(pair: Pair) -> None:
    _adds(pair)


@pytest.mark.parametrize("seed", range(examples(3, nightly=20)))
def test_one_more_site_among_several(seed: int) -> None:
    problem = unlike_sites(seed, 6, operators=5, variants=3, cloud=3)
    names = [workflow.name for workflow in problem.workflows]
    before = solve(restricted(problem, names[:5]), gap=0.01).plan
    assert before is not None
    plan = add_workflows(problem, before).solution.plan
    whole = solve(problem, gap=0.01).plan
    assert plan is not None
    assert whole is not None
    assert complaints(problem, plan) == []
    assert plan.cost.total_usd_per_h >= whole.certificate.bound * (1 - NEAR)
    for name in names[:5]:
        assert _part(plan, name) == _part(before, name)


def test_several_sites_at_once_and_others_that_are_gone() -> None:
    problem = unlike_sites(1, 8, operators=5, variants=3, cloud=3)
    names = [workflow.name for workflow in problem.workflows]
    before = solve(restricted(problem, names[:5]), gap=0.01).plan
    assert before is not None
    added = add_workflows(restricted(problem, names[2:]), before)
    plan = added.solution.plan
    assert (added.kept.new, added.kept.dropped) == (tuple(names[5:]), ("s0", "s1"))
    assert plan is not None
    assert complaints(restricted(problem, names[2:]), plan) == []
    assert all(_part(plan, name) == _part(before, name) for name in names[2:5])
