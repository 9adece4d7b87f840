"""Plans in time where the best mixture is late, whatever its batches and utilisations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Deadline,
    EndToEnd,
    LossKind,
    MigrationPrices,
    Objective,
    Plan,
    Problem,
    ReplanSettings,
    SearchSettings,
    Sharing,
    Slo,
    combine_workflows,
    evaluate,
    replan,
    solve,
)
from jellybean_solver.deadline.settings import DEFAULT_SETTINGS, MixSettings
from jellybean_solver.model.multi_workflow import with_deadlines
from tests import plan_check
from tests.support.small_problems import box, operator, problem, variant

ACCURACIES = {"low": 80.0, "middle": 85.0, "high": 95.0}
SECONDS = {"low": 0.002, "middle": 0.02, "high": 0.2}


def reading(*, count: int = 2, **slo: float | tuple[LossKind, ...]) -> Problem:
    """10 requests per second: a box serves low and middle for all of them, and high for 4."""
    variants = [variant(name, {"box": seconds}) for name, seconds in SECONDS.items()]
    made = problem(
        operator("read", ["camera"], *variants),
        pools=[box(count, sharing=Sharing.EXCLUSIVE)],
        accuracy=EndToEnd(("read",), {(name,): accuracy for name, accuracy in ACCURACIES.items()}),
        slo=Slo(**slo),  # type: ignore[arg-type]
    )
    return replace(made, utilisation=0.8)


def most_accurate(asked: Problem) -> Problem:
    return replace(asked, objective=Objective.MEAN_ACCURACY)


def simulated(p99_s: float) -> Deadline:
    return Deadline(p99_s, lambda plan: simulate_plan(plan).latency_p99_s / p99_s)


def only(*names: str) -> Deadline:
    """A deadline that is met by plans in which all requests get one of these variants."""

    def judge(plan: Plan) -> float:
        return 0.5 if not plan.mixes and plan.operators[0].variant in names else 2.0

    return Deadline(0.5, judge)


def solved(asked: Problem, deadline: Deadline) -> Plan:
    """The plan, which the two checkers find nothing wrong with, and which its judge accepts."""
    plan = solve(asked, deadline=deadline).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    assert plan_check.complaints(asked, plan) == []
    assert deadline.judge is not None
    assert deadline.judge(plan) <= 1.0
    assert plan.slo == asked.slo
    return plan


@pytest.mark.slow
def test_a_variant_that_is_too_slow_is_left_out() -> None:
    """The best mixture is of low and high, which takes 200 ms; one box is enough for middle."""
    asked = most_accurate(reading())
    assert {one.variant for one in unlimited(asked).operators[0].variants} == {"middle", "high"}
    plan = solved(asked, simulated(0.09))
    assert plan.accuracy == pytest.approx(85.0)
    assert plan.certificate.objective_of is Objective.MEAN_ACCURACY
    assert plan.certificate.objective == plan.accuracy
    assert plan.certificate.bound == pytest.approx(unlimited(asked).accuracy, abs=0.02), "that of all mixtures"


@pytest.mark.parametrize("names", [["low"], []])
def test_one_selection_of_several_workflows_is_sought_once(names: list[str]) -> None:
    """The most accurate plan of two workflows; none is in time but those of one variant each, or none at all."""
    both = combine_workflows("both", {"a": reading(count=4), "b": reading(count=4)})
    asked = most_accurate(with_deadlines(both, {"a": 0.5, "b": 0.5}))
    few = replace(DEFAULT_SETTINGS, mix=MixSettings(proposals=8, judgements=1))

    def judge(plan: Plan) -> float:
        return 0.5 if {one.variant for one in plan.variants} <= set(names) else 2.0

    plan = solve(asked, deadline=Deadline(0.5, judge, few)).plan
    assert (plan is None) == (not names)
    if plan is not None:
        assert [workflow.accuracy for workflow in plan.workflows] == [80.0, 80.0]
        assert plan_check.complaints(asked, plan) == []


def unlimited(asked: Problem) -> Plan:
    plan = solve(asked).plan
    assert plan is not None
    return plan


def test_what_is_left_without_a_slow_variant_is_mixed() -> None:
    """300 requests per second: a box serves low for 400, and middle for 40."""
    faster = reading(count=4)
    asked = most_accurate(replace(faster, sources=tuple(replace(one, rate_per_s=300.0) for one in faster.sources)))
    plan = solved(asked, simulated(0.09))
    assert {one.variant for one in plan.operators[0].variants} == {"low", "middle"}
    assert 80.0 < (plan.accuracy or 0.0) < 85.0


@pytest.mark.slow
@pytest.mark.parametrize("names", [["low"], ["middle"], ["low", "middle"]])
def test_the_most_accurate_selection_is_found_where_all_mixtures_are_late(names: list[str]) -> None:
    plan = solved(most_accurate(reading(count=4)), only(*names))
    assert plan.accuracy == max(ACCURACIES[name] for name in names)


@pytest.mark.slow
def test_it_is_within_the_budget() -> None:
    for budget, accuracy in ((1.5, 80.0), (3.0, 95.0)):
        plan = solved(most_accurate(reading(count=4, budget_usd_per_h=budget)), only("low", "high"))
        assert plan.accuracy == accuracy, "high takes three boxes of 1 USD/h"


def test_a_mean_accuracy_is_reached_by_one_selection() -> None:
    plan = solved(reading(mean_accuracy=82.0), only("middle"))
    assert plan.accuracy == pytest.approx(85.0)
    assert plan.cost.total_usd_per_h == plan.certificate.objective >= plan.certificate.bound
    assert solve(reading(mean_accuracy=86.0, budget_usd_per_h=1.0), deadline=only("middle")).plan is None


@pytest.mark.parametrize(("penalty", "accuracy"), [(0.05, 85.0), (2.0, 95.0)])
def test_a_soft_mean_is_weighed_among_selections(penalty: float, accuracy: float) -> None:
    """Two boxes more, which high takes, cost 2 USD/h for 8 points that middle lacks."""
    asked = reading(count=3, mean_accuracy=93.0, penalty_usd_per_h=penalty)
    plan = solved(asked, only("middle", "high"))
    assert plan.accuracy == pytest.approx(accuracy)
    assert plan.certificate.penalty_usd_per_h == pytest.approx(penalty * max(0.0, 93.0 - accuracy))


@pytest.mark.slow
def test_one_selection_bears_the_losses_too() -> None:
    asked = most_accurate(reading(count=4, survives=(LossKind.WORKER,)))
    plan = solved(asked, only("low"))
    assert plan.accuracy == 80.0
    assert len(plan.workers) == 2


@pytest.mark.slow
def test_a_running_plan_is_replaced_by_one_selection() -> None:
    asked = most_accurate(reading(count=3))
    running = unlimited(replace(asked, slo=Slo(accuracy=95.0), objective=Objective.COST))
    settings = ReplanSettings(MigrationPrices(0.0, 0.0), 24.0)
    found = replan(asked, running, settings, SearchSettings(deadline=only("low")))
    assert found.best is not None
    assert found.best.accuracy == 80.0


@pytest.mark.slow
def test_the_judge_sees_the_fastest_plan_although_no_plan_is_in_time() -> None:
    seen: list[float] = []

    def judge(plan: Plan) -> float:
        seen.append(simulate_plan(plan).latency_p99_s)
        return seen[-1] / 0.001

    assert solve(most_accurate(reading()), deadline=Deadline(0.001, judge)).plan is None
    assert SECONDS["low"] < min(seen) < SECONDS["middle"], "all requests get low"
