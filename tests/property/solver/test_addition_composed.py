"""Workflows are added to plans that mix variants or bear losses, and may do so themselves.

Never cheaper than the bound of both together, never refused where free workers alone would do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    LossKind,
    Plan,
    Problem,
    Slo,
    add_workflows,
    combine_workflows,
    evaluate,
    from_document,
    restricted,
    solve,
    to_document,
)
from tests.property.solver.test_mixed_together import measured
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import pairs

LITTLE = 1e-6

means = st.sampled_from((None, None, 55.0, 70.0, 85.0))
kinds = st.sampled_from(((), (), (LossKind.WORKER,), (LossKind.LINK,), (LossKind.WORKER, LossKind.LINK)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, dict[str, Problem]]:
    """Two workflows on a roomy fleet, together and one by one."""
    pair = draw(pairs(limited=draw(st.booleans())))
    roomy = tuple(replace(pool, count=2 * pool.count + 2) for pool in pair[0].pools)
    problems = {
        name: replace(measured(own), pools=roomy, slo=Slo(mean_accuracy=draw(means), survives=draw(kinds)))
        for name, own in zip("ab", pair, strict=True)
    }
    return combine_workflows("both", problems), problems


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=1000))
@given(cases())
def test_a_workflow_is_added_beside_another(case: tuple[Problem, dict[str, Problem]]) -> None:
    both, _ = case
    assume(both.is_for_ways)
    before = solve(restricted(both, {"a"}), explained=False).plan
    assume(before is not None)
    assert before is not None
    added = add_workflows(both, before)
    assert (added.kept.workflows, added.kept.new) == (("a",), ("b",))
    plan = added.solution.plan
    event(f"added {plan is not None}, mixes {before.mixes}, losses {bool(before.survives)}")
    if plan is None:
        assert solve(_on_free_workers(both, before), explained=False).plan is None
        return
    assert evaluate(both, plan).complaints == ()
    assert from_document(to_document(plan)) == plan
    least = solve(both, explained=False).certificate
    assert least is not None
    cost = plan.cost.total_usd_per_h
    assert cost >= least.bound * (1 - LITTLE) - LITTLE
    assert _of(plan, "a") == _of(before, "a")
    again = add_workflows(both, plan)
    assert (again.kept.workflows, again.kept.planned) == (("a", "b"), ())
    assert again.solution.plan is not None
    assert again.solution.plan.cost.total_usd_per_h == pytest.approx(cost)


def _on_free_workers(both: Problem, before: Plan) -> Problem:
    """The new workflow on the workers and links that a plan does not use at all."""
    used = Counter(worker.pool for worker in before.workers)
    pools = tuple(replace(pool, count=pool.count - used[pool.name]) for pool in both.pools)
    tiers = {worker.tier for worker in before.workers} | {source.tier for source in before.sources}
    links = tuple(link for link in both.links if link.bandwidth_bytes_per_s is None or link.upstream_tier not in tiers)
    return restricted(replace(both, pools=pools, links=links), {"b"})


def _of(plan: Plan, workflow: str) -> dict[str, float]:
    """Worker and operator -> the rate of a workflow."""
    return {
        f"{worker.name} {name}": pytest.approx(rate)
        for worker in plan.workers
        for name, rate in worker.rates_per_s.items()
        if plan.workflow_of(name) == workflow
    }
