"""Of plans of equal cost and accuracy `plan` takes the least p99, against enumeration where nothing queues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings

from jellybean.planning.project_plan import best_of_equal_cost
from jellybean_solver import Problem, evaluate, solve
from jellybean_solver.latency.estimate import latency
from jellybean_solver.planning.requirements import scaled
from tests.brute_force import deadline_optimum, optimum
from tests.strategies import problems
from tests.support.examples import examples

IDLE = 1e-6  # of the rates: one worker does for all
NEAR = 0.3  # relative: a tail bound at no load is that much above the enumerated time at most


@pytest.mark.slow
@settings(max_examples=examples(40, nightly=1000))
@given(problems(max_operators=3))
def test_no_plan_as_cheap_and_as_accurate_is_faster(drawn: Problem) -> None:
    problem = scaled(drawn, IDLE)
    cheapest = solve(problem)
    assume(cheapest.plan is not None)
    before, after = cheapest.plan, best_of_equal_cost(problem, cheapest).plan
    assert before is not None and after is not None
    cost = after.cost.total_usd_per_h
    assert cost == pytest.approx(before.cost.total_usd_per_h, rel=1e-8, abs=1e-8)
    assert (after.accuracy or 0.0) >= (before.accuracy or 0.0) - 1e-6
    assert after.slo == problem.slo and after.certificate.is_optimal
    assert evaluate(problem, after).complaints == ()
    if after.accuracy == before.accuracy:
        assert latency(after).slowest_s <= latency(before).slowest_s
    event("faster" if after is not before and latency(after).slowest_s < latency(before).slowest_s else "the same")

    accurate = replace(problem, slo=replace(problem.slo, accuracy=after.accuracy))
    as_accurate = [chosen for chosen in optimum.selections(problem) if _is_as_accurate(accurate, chosen)]
    ties = [c for c in deadline_optimum.choices(problem, as_accurate) if c.cost <= cost * (1 + 1e-9) + 1e-12]
    least_s = min((choice.slow_s for choice in ties), default=latency(after).slowest_s)
    event(f"{min(len(ties), 3)} ties, chain {_is_chain(problem)}")
    if not _is_chain(problem):  # runs of parallel operators that share a worker: the search may miss the fastest plan
        return
    assert latency(after).slowest_s <= least_s * (1 + NEAR) + 1e-3  # seconds


def _is_as_accurate(problem: Problem, selection: dict[str, str]) -> bool:
    target, accuracy = problem.slo.accuracy, optimum.accuracy(problem, selection)
    return target is None or (accuracy is not None and accuracy >= target - 1e-6)


def _is_chain(problem: Problem) -> bool:
    upstreams = [edge.upstream for operator in problem.operators for edge in operator.inputs]
    return len(set(upstreams)) == len(upstreams) == len(problem.operators)
