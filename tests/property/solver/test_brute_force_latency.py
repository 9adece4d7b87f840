"""Plans that keep a p99 latency against enumeration, where load is so low that nothing queues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Problem, evaluate, least_latency_s, solve
from jellybean_solver.latency.estimate import latency
from jellybean_solver.planning.requirements import scaled
from tests.brute_force import deadline_optimum
from tests.plan_check import complaints
from tests.strategies import problems
from tests.support.examples import examples

IDLE = 1e-6  # of the rates: one worker does for all
NEAR = 0.06  # of a time: the closed form is never below it, and no further above


@st.composite
def idle_problems(draw: st.DrawFn) -> tuple[Problem, float]:
    """With a time that some choices keep and others break, and sometimes a budget that some break."""
    problem = scaled(draw(problems(max_operators=3, limited=True)), IDLE)
    found = list(deadline_optimum.choices(problem))
    assume(found)
    times = sorted({round(choice.slow_s, 9) for choice in found})
    within_s = draw(st.sampled_from(times)) * draw(st.sampled_from((0.9, 1.0 + 2 * NEAR)))
    assume(within_s > 1e-3)
    costs = sorted({choice.cost for choice in found})
    budget = draw(st.sampled_from((None, None, draw(st.sampled_from(costs)) * 1.01 + 1e-6)))
    return replace(problem, slo=replace(problem.slo, budget_usd_per_h=budget)), within_s


@settings(max_examples=examples(60, nightly=1500))
@given(idle_problems())
def test_a_plan_in_time_costs_no_less_than_the_cheapest_and_its_bound_no_more(drawn: tuple[Problem, float]) -> None:
    problem, within_s = drawn
    least = deadline_optimum.cheapest(problem, within_s * (1 + 1e-6), surely=False)
    surely = deadline_optimum.cheapest(problem, within_s / (1 + NEAR), surely=True)

    if surely is not None:  # a choice that is in time for sure
        assert least_latency_s(problem) <= within_s

    solution = solve(problem, p99_s=within_s)
    event(solution.status)

    if solution.plan is None:
        assert solution.infeasibility is not None
        proven = "even with zero queueing delay" in solution.infeasibility.reasons[0]
        event(f"proven {proven}, there is one {surely is not None}")  # a search: it may miss one, but says so
        assert surely is None or not proven
        return
    plan = solution.plan
    assert least is not None
    assert latency(plan).meets(within_s)
    assert latency(plan).unqueued_s >= least_latency_s(problem) * (1 - 1e-9)
    assert evaluate(problem, plan).complaints == ()
    assert complaints(problem, plan) == []
    cost, proof = plan.cost.total_usd_per_h, plan.certificate
    assert cost >= least * (1 - 1e-6) - 1e-6
    assert surely is None or proof.bound <= surely * (1 + 1e-6) + 1e-6
    assert proof.gap == pytest.approx(1 - proof.bound / cost if cost > 0 else 0.0, abs=1e-6)
    event(f"cheapest {surely is not None and cost <= surely * (1 + 1e-6) + 1e-6}")
