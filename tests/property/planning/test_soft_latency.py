"""Plans of least cost and penalties against enumeration, where load is so low that nothing queues."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean.planning import settle
from jellybean.planning.soft_plan import TOLERANCE
from jellybean.planning.soft_targets import soft_targets
from jellybean_solver import DEFAULT_GAP, Plan, Problem, Slo, combine_workflows, evaluate, solve
from jellybean_solver.planning.requirements import scaled
from tests.brute_force import deadline_optimum, optimum
from tests.brute_force.deadline_optimum import Choice
from tests.plan_check import complaints
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import pairs

IDLE = 1e-6  # of the rates: one worker does for all
MOST_CHOICES = 5_000  # of places and variants, so that enumeration ends
LITTLE = 1e-6

Case = tuple[Problem, Sequence[Choice]]


@st.composite
def softened(draw: st.DrawFn, slo: Slo, choices: Sequence[Choice]) -> Slo:
    """Targets with a soft p99 latency near some choice's, at a price that the choices' costs are worth."""
    times = sorted({round(max(choice.slowest_s.values()), 9) for choice in choices})
    target_s = draw(st.sampled_from(times)) * draw(st.sampled_from((0.5, 0.9, 1.1)))
    assume(target_s > 1e-3)
    costs = [choice.cost for choice in choices]
    price = max(1e-3, max(costs) - min(costs)) / max(1e-3, times[-1] - times[0])
    price *= draw(st.sampled_from((0.1, 1.0, 10.0)))
    return replace(slo, soft_latency_p99_s=target_s, latency_penalty_usd_per_h_per_s=price)


@st.composite
def of_one_workflow(draw: st.DrawFn) -> Case:
    problem = scaled(draw(problems(max_operators=3, limited=True)), IDLE)
    assume(_choices(problem) <= MOST_CHOICES)
    found = list(deadline_optimum.choices(problem))
    assume(found)
    return replace(problem, slo=draw(softened(problem.slo, found))), found


@st.composite
def of_two_workflows(draw: st.DrawFn) -> Case:
    """Both with soft targets, or one of them with none."""
    pair = [scaled(one, IDLE) for one in draw(pairs(limited=True))]
    accurate = [[s for s in optimum.selections(one) if _meets(one, s)] for one in pair]
    softs: list[Problem] = []
    for one in pair:
        own = list(deadline_optimum.choices(one))
        assume(own)
        slo = draw(softened(replace(one.slo, budget_usd_per_h=None), own))
        softs.append(replace(one, slo=slo))
    if draw(st.integers(0, 3)) == 0:
        softs[1] = replace(softs[1], slo=replace(pair[1].slo, budget_usd_per_h=None))
    both = combine_workflows("both", {"a": softs[0], "b": softs[1]})
    assume(_choices(both) <= MOST_CHOICES)
    chosen = [_called("a", first) | _called("b", second) for first, second in itertools.product(*accurate)]
    hurried = tuple(replace(one, slo=replace(one.slo, latency_p99_s=1.0)) for one in both.workflows)
    found = list(deadline_optimum.choices(replace(both, workflows=hurried), chosen))
    assume(found)
    return both, found


def _choices(problem: Problem) -> int:
    return math.prod(len(o.variants) * sum(pool.count for pool in problem.pools) for o in problem.operators)


def _meets(problem: Problem, selection: Mapping[str, str]) -> bool:
    target, value = problem.slo.accuracy, optimum.accuracy(problem, selection)
    return target is None or (value is not None and value >= target - 1e-9)


def _called(workflow: str, selection: Mapping[str, str]) -> dict[str, str]:
    return {f"{workflow}/{name}": variant for name, variant in selection.items()}


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(2, nightly=600))
@given(of_one_workflow())
def test_no_choice_is_better(case: Case) -> None:
    _is_best(*case)


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(8, nightly=600))
@given(of_two_workflows())
def test_no_choice_of_two_workflows_is_better(case: Case) -> None:
    _is_best(*case)


def _is_best(problem: Problem, choices: Sequence[Choice]) -> None:
    cheapest = solve(problem, explained=False)
    assert cheapest.plan is not None
    found = settle(problem, cheapest, DEFAULT_GAP, None)
    plan = found.solution.plan
    assert plan is not None and found.judged is not None and not found.reasons
    assert plan.slo_by_workflow == problem.slo_by_workflow
    assert evaluate(problem, plan).complaints == ()
    assert complaints(problem, plan) == []

    proof, value = plan.certificate, _value(plan, {name: p99.p99_s for name, p99 in found.judged.p99.items()})
    assert proof.objective == pytest.approx(value)
    assert proof.penalty_usd_per_h == pytest.approx(value - plan.cost.total_usd_per_h, abs=1e-9)

    def penalty(name: str, seconds: float) -> float:
        return problem.slo_by_workflow[name].latency_penalty(seconds)

    surely = deadline_optimum.least_value(choices, penalty, surely=True)
    assert proof.bound <= surely * (1 + LITTLE) + LITTLE
    assert value >= deadline_optimum.least_value(choices, penalty, surely=False) * (1 - LITTLE) - LITTLE
    event(f"best {value <= surely * (1 + LITTLE) / (1 - TOLERANCE) + LITTLE}, tried {bool(found.best)}")


def _value(plan: Plan, p99_s: Mapping[str, float]) -> float:
    late = sum(soft.penalty(p99_s[name]) for name, soft in soft_targets(plan).items())
    return plan.cost.total_usd_per_h + late
