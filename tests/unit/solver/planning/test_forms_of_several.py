"""The mean accuracy of several workflows whose operators have forms, in cases that a person works out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import (
    Clock,
    Independent,
    Objective,
    OutOfTimeError,
    Plan,
    Problem,
    ReplanSettings,
    Sharing,
    Solution,
    Verdict,
    combine_workflows,
    cut_form,
    replan,
    solve,
)
from jellybean_solver.planning import form_search
from jellybean_solver.planning.form_search import best_of_forms, candidates
from tests.support.small_problems import box, gpu, operator, problem, variant


def reading(*, cut: bool = True) -> Problem:
    """Two workflows of 10 requests/s: small (80 %) keeps 1 box busy, large (90 %) 4; cut in two it keeps 2 GPUs busy.

    The 4 boxes serve a third of the requests with large, so that the mean is at most 83.3 % without a cut.
    """
    read = operator("read", ["camera"], variant("small", {"box": 0.1}), variant("large", {"box": 0.4}))
    head, tail = variant("large", {"gpu": 0.1}, {"read": 1.0}), variant("large", {"gpu": 0.1})
    one = problem(
        replace(read, forms=(cut_form(read, head, tail, ["camera"]),) if cut else ()),
        pools=[box(4), gpu(4, sharing=Sharing.SHARED)],
        accuracy=Independent({"read": {"small": 80.0, "large": 90.0}}),
    )
    one = replace(one, objective=Objective.MEAN_ACCURACY)
    return combine_workflows("both", {"a": one, "b": one})


def planned(asked: Problem) -> Plan:
    plan = solve(asked).plan
    assert plan is not None
    return plan


def test_the_bound_of_a_choice_is_that_of_the_mean() -> None:
    assert planned(reading(cut=False)).mean_accuracy == pytest.approx(250 / 3)
    plan = planned(reading())
    assert plan.mean_accuracy == pytest.approx(90.0)
    assert plan.certificate.bound == pytest.approx(90.0, abs=0.01)


def test_a_workflow_that_may_be_left_out_lacks_at_most_all_of_its_accuracy() -> None:
    """`b` cannot be served at all, and is worth more USD than its accuracy has percent."""
    asked = reading()
    sources = tuple(replace(one, rate_per_s=1000.0) if one.name.startswith("b/") else one for one in asked.sources)
    workflows = tuple(replace(one, worth_usd_per_h=500.0 if one.name == "b" else None) for one in asked.workflows)
    pools = (replace(asked.pools[0], count=2), *asked.pools[1:])  # in which `a` reaches 83.3 % without a cut
    plan = planned(replace(asked, sources=sources, workflows=workflows, pools=pools))
    assert [one.name for one in plan.left_out] == ["b"]
    assert plan.mean_accuracy == pytest.approx(45.0)


def test_from_a_running_plan_the_more_accurate_form_is_chosen_not_the_cheaper_one() -> None:
    decision = replan(reading(), planned(reading(cut=False)), ReplanSettings())
    assert decision.verdict is Verdict.REPLACE
    assert decision.best is not None
    assert decision.best.mean_accuracy == pytest.approx(90.0)
    assert decision.accuracy_bound == pytest.approx(90.0, abs=0.01)


def test_from_a_running_plan_the_bound_holds_for_choices_that_were_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_search, "MOST_SOLVED", 1)
    decision = replan(reading(), planned(reading(cut=False)), ReplanSettings())
    assert decision.best is None or decision.best.mean_accuracy == pytest.approx(250 / 3)
    assert decision.accuracy_bound is not None
    assert decision.accuracy_bound >= 90.0


def test_after_the_time_limit_no_further_choice_is_begun() -> None:
    asked, now, begun = replace(reading(), objective=Objective.COST), [0.0], []

    def solve_one(changed: Problem, limit: Clock, explained: bool) -> Solution:
        begun.append(changed)
        now[0] += 2.0
        raise OutOfTimeError("late", 100.0)

    with pytest.raises(OutOfTimeError) as caught:
        best_of_forms(asked, gap=None, limit=Clock(lambda: now[0], 1.0), explained=False, solve_one=solve_one)
    assert len(begun) == 1
    assert caught.value.bound == pytest.approx([one.bound for one in candidates(asked)][1])


def test_a_plan_that_time_ended_the_search_after_has_a_bound_on_all_choices() -> None:
    asked, now = replace(reading(), objective=Objective.COST), [0.0]

    def solve_one(changed: Problem, limit: Clock, explained: bool) -> Solution:
        now[0] += 2.0
        found = solve(replace(changed, pools=tuple(replace(pool, price_usd_per_h=9.0) for pool in changed.pools)))
        assert found.plan is not None
        return found

    found = best_of_forms(asked, gap=None, limit=Clock(lambda: now[0], 1.0), explained=False, solve_one=solve_one)
    assert found.certificate is not None
    assert found.certificate.termination == "time_limit"
    assert found.certificate.bound == pytest.approx([one.bound for one in candidates(asked)][1])
