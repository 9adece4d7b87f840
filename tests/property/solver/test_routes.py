"""What every plan's workers and routes look like."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings

from jellybean_solver import Plan, Problem, Sharing, evaluate, solve
from tests.strategies import problems
from tests.support.examples import examples


def _plan(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    return plan


@settings(max_examples=examples(30))
@given(problems())
def test_routes_carry_exactly_what_the_workers_state(problem: Problem) -> None:
    plan = _plan(problem)
    scored = evaluate(problem, plan)

    assert math.fsum(route.weight for route in plan.routes) == pytest.approx(1.0, abs=1e-12)
    assert min(route.weight for route in plan.routes) > 0
    stated, brought = (
        {(name, worker.name): rate for worker in one.workers for name, rate in worker.rates_per_s.items()}
        for one in (plan, scored.plan)
    )
    assert stated == pytest.approx(brought, rel=1e-9)
    assert {worker.name: worker.load for worker in plan.workers} == pytest.approx(dict(scored.loads), rel=1e-9)
    for name, rate in problem.rate_per_s.items():
        if name in problem.operator_by_name:
            assert sum(r for (of, _), r in stated.items() if of == name) == pytest.approx(rate, rel=1e-9)


@settings(max_examples=examples(30))
@given(problems())
def test_pools_are_evenly_loaded_and_little_shared(problem: Problem) -> None:
    plan = _plan(problem)

    for pool in problem.pools:
        workers = [worker for worker in plan.workers if worker.pool == pool.name]
        hosted = {name for worker in workers for name in worker.rates_per_s}
        if pool.sharing is Sharing.EXCLUSIVE:
            for name in hosted:
                loads = [worker.load for worker in workers if name in worker.rates_per_s]
                assert loads == pytest.approx([loads[0]] * len(loads), abs=1e-7)
        elif workers:
            loads = [worker.load for worker in workers]
            assert loads == pytest.approx([loads[0]] * len(loads), abs=1e-7)
            # Wrap-around cuts each operator at worker boundaries only.
            assert sum(len(worker.rates_per_s) for worker in workers) <= len(hosted) + len(workers) - 1


@settings(max_examples=examples(30))
@given(problems())
def test_routes_are_few(problem: Problem) -> None:
    plan = _plan(problem)
    cuts = sum(len(worker.rates_per_s) for worker in plan.workers)

    # Tiers cut once per possible pair of tiers on an edge; workers once per operator that they host.
    edges = len(problem.edges) * len(problem.tiers) ** 2
    assert len(plan.routes) <= 1 + edges + cuts
