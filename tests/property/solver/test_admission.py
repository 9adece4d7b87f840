"""Which of two workflows are served, by what they are worth, against enumeration of who is served and how."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Problem, combine_workflows, evaluate, from_document, served, solve, to_document
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.property.solver.test_together import cheapest_pair
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import Pair, pairs

NEAR = 1e-6
ROUNDING = 1e-9  # USD/h: two workflows of 0.2 and 0.1 cost 0.30000000000000004, which is within a budget of 0.3
NAMES = ("a", "b")


def _costs(pair: Pair, both: Problem) -> dict[tuple[str, ...], float]:
    """The least cost by who is served; inf if these cannot be."""
    alone = [optimum.cheapest(one).cost for one in pair]
    found = {(): 0.0, ("a",): alone[0], ("b",): alone[1], NAMES: cheapest_pair(pair, both)}
    return {who: math.inf if cost is None else cost for who, cost in found.items()}


def _valued(both: Problem, worths: tuple[float | None, ...], budget: float | None) -> Problem:
    workflows = tuple(replace(one, worth_usd_per_h=worth) for one, worth in zip(both.workflows, worths, strict=True))
    return replace(both, workflows=workflows, slo=replace(both.slo, budget_usd_per_h=budget))


def _is_best(pair: Pair, worths: tuple[float | None, ...], budget: float | None) -> None:
    both = combine_workflows("both", dict(zip(NAMES, pair, strict=True)))
    costs = _costs(pair, both)
    problem = _valued(both, worths, budget)
    losses = dict(zip(NAMES, worths, strict=True))
    values = {
        who: cost + sum(losses[name] or 0.0 for name in NAMES if name not in who)
        for who, cost in costs.items()
        if cost <= (math.inf if budget is None else budget + ROUNDING)
        and all(losses[name] is not None or name in who for name in NAMES)
    }
    best = min(values.values(), default=math.inf)
    solution = solve(problem, explained=False)
    plan = solution.plan
    event(f"plan {plan is not None}, left out {0 if plan is None else len(plan.left_out)}, budget {budget is not None}")
    if plan is None:
        assert math.isinf(best) or values.get((), math.inf) <= best + NEAR * max(1.0, best)
        return
    proof = plan.certificate
    assert proof.bound <= best + NEAR * max(1.0, best)
    assert proof.objective >= best - NEAR * max(1.0, best)
    assert proof.objective == pytest.approx(plan.cost.total_usd_per_h + proof.forgone_usd_per_h)
    assert proof.forgone_usd_per_h == pytest.approx(sum(losses[one.name] or 0.0 for one in plan.left_out))
    assert evaluate(problem, plan).complaints == ()
    assert complaints(served(problem, plan), plan) == []
    assert from_document(to_document(plan)) == plan
    assert {one.name for one in plan.workflows} | {one.name for one in plan.left_out} == set(NAMES)


worths = st.sampled_from([None, 0.05, 0.5, 2.0, 10.0, 1000.0])


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(30, nightly=500))
@given(pairs(), st.tuples(worths, worths), st.sampled_from([None, None, 0.3, 1.0, 4.0]))
def test_who_is_served_is_worth_the_most(pair: Pair, values: tuple[float | None, ...], budget: float | None) -> None:
    _is_best(pair, values, budget)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(30, nightly=500))
@given(pairs(limited=True), st.tuples(worths, worths), st.sampled_from([None, 1.0]))
def test_with_memory_bandwidth_and_residency_too(
    pair: Pair, values: tuple[float | None, ...], budget: float | None
) -> None:
    _is_best(pair, values, budget)
