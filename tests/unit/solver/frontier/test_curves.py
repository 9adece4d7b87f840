from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from jellybean_solver import (
    EndToEnd,
    Plan,
    Problem,
    Slo,
    Solution,
    SolverError,
    Termination,
    cost_accuracy,
    cost_rate,
    solve,
)
from tests.support.small_problems import box, gpu, operator, problem, variant
from tests.vqa_medium import vqa_problem


def _one(
    accuracies: dict[str, float], loads_s: dict[str, float], *, count: int = 10, slo: Slo | None = None
) -> Problem:
    """One operator at 10/s on boxes of 1 USD/h: a variant of n x 0.1 s needs n of them."""
    variants = [variant(name, {"box": load}, memory_bytes={"box": 5.0}) for name, load in loads_s.items()]
    table = {(name,): value for name, value in accuracies.items()}
    pools = [box(count, memory=10.0)]
    return problem(operator("o", ["camera"], *variants), pools=pools, accuracy=EndToEnd(("o",), table), slo=slo)


def test_published_corners() -> None:
    curve = cost_accuracy(vqa_problem(40.0, 57.0))

    found = [(corner.x, round(corner.cost_usd_per_h, 2)) for corner in curve.points]
    assert (56.59, 7.01) in found
    assert found[0] == (54.02, 4.68)
    assert found[-1] == (58.33, 15.41)
    assert curve.exact
    assert "58.33" in curve.ended[0]


def test_what_is_dominated_or_ties_at_a_lower_accuracy_is_no_corner() -> None:
    loads = {"bad": 0.2, "low": 0.1, "same": 0.1, "high": 0.3}
    curve = cost_accuracy(_one({"bad": 10.0, "low": 50.0, "same": 60.0, "high": 90.0}, loads))

    assert [(corner.x, corner.cost_usd_per_h) for corner in curve.points] == [(60.0, 1.0), (90.0, 3.0)]
    assert [corner.gap for corner in curve.points] == [0, 0]
    assert curve.at_least(55.0) == curve.points[0]
    assert curve.at_least(60.0) == curve.points[0]
    assert curve.at_least(60.1) == curve.points[1]
    assert curve.at_least(90.1) is None


def test_the_curve_ends_where_the_fleet_is_too_small_with_the_figures() -> None:
    curve = cost_accuracy(_one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.4}, count=2))

    assert [corner.x for corner in curve.points] == [50.0]
    assert curve.exact
    assert "no plan is more accurate than 50" in curve.ended[0]
    assert any("at most 0.5 of the rates fits" in sentence for sentence in curve.ended)


def test_without_a_plan_there_is_no_corner_but_a_reason() -> None:
    curve = cost_accuracy(_one({"low": 50.0}, {"low": 1.0}, count=2))

    assert curve.points == ()
    assert any("capacity" in sentence for sentence in curve.ended)


def test_selections_of_unknown_accuracy_are_not_on_the_curve() -> None:
    known = cost_accuracy(_one({"known": 70.0}, {"unknown": 0.1, "known": 0.2}))
    assert [(corner.x, corner.cost_usd_per_h) for corner in known.points] == [(70.0, 2.0)]

    too_large = cost_accuracy(_one({"known": 70.0}, {"unknown": 0.1, "known": 9.0}))
    assert too_large.points == ()
    assert "whose accuracy the profile knows" in too_large.ended[0]

    nothing = cost_accuracy(_one({}, {"unknown": 0.1}))
    assert nothing.points == ()
    assert "the accuracy of no selection" in nothing.ended[0]


def test_a_corner_over_budget_or_over_a_checked_limit_is_marked() -> None:
    slo = Slo(accuracy=80.0, latency_p99_s=1.0, budget_usd_per_h=2.0)
    case = _one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.3}, slo=slo)
    seen: list[Slo] = []

    def check(plan: Plan) -> str | None:
        seen.append(plan.slo)
        return "too slow" if plan.accuracy == 50.0 else None

    curve = cost_accuracy(case, check=check)

    assert curve.points[0].breaches == ("too slow",)
    assert "budget: 3.00 USD/h is 1.00 USD/h more" in curve.points[1].breaches[0]
    assert seen == [replace(slo, accuracy=50.0), replace(slo, accuracy=90.0)]
    assert [corner.plan.slo for corner in curve.points if corner.plan is not None] == seen


def test_a_plan_over_memory_is_never_shown_as_fine() -> None:
    first = operator("a", ["camera"], variant("v", {"box": 0.01}, {"b": 1.0}, {"box": 6.0}))
    second = operator("b", ["a"], variant("v", {"box": 0.01}, {}, {"box": 6.0}))
    case = problem(first, second, pools=[box(memory=10.0)], accuracy=EndToEnd(("a",), {("v",): 50.0}))

    curve = cost_accuracy(case)
    rates = cost_rate(case, [1.0])

    assert curve.points == () or curve.points[0].breaches
    assert rates.points[0].plan is None or rates.points[0].breaches


def _limited(cut: Callable[[Solution], Solution | None]) -> Callable[[Problem], Solution]:
    def answer(case: Problem) -> Solution:
        found = cut(solve(case))
        if found is None:
            raise SolverError("no plan was found in the time allowed")
        return found

    return answer


def _unproven(solution: Solution, bound: float, ended: Termination = Termination.TIME_LIMIT) -> Solution:
    assert solution.plan is not None
    certificate = replace(solution.plan.certificate, bound=bound, gap=0.5, termination=ended)
    return replace(solution, plan=replace(solution.plan, certificate=certificate))


def test_gaps_are_kept_and_the_curve_is_then_not_exact() -> None:
    case = _one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.4})
    curve = cost_accuracy(
        case, solve=_limited(lambda s: _unproven(s, 1.0) if s.plan is not None and s.plan.accuracy == 90.0 else s)
    )

    assert [corner.gap for corner in curve.points] == [0.0, 0.75]
    assert curve.finished
    assert not curve.exact


def test_a_dominated_unproven_plan_leaves_its_bound_to_its_successor() -> None:
    """The first solve finds only the dearer of two plans, the second the same cost at more accuracy."""
    case = _one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.2})
    dear = replace(case, operators=(replace(case.operators[0], variants=(case.operators[0].variants[1],)),))

    def answer(asked: Problem) -> Solution:
        if asked.slo.accuracy is not None:
            return solve(asked)
        found = _unproven(solve(replace(dear, slo=Slo())), 0.5)
        assert found.plan is not None
        return replace(found, plan=replace(found.plan, accuracy=50.0))

    curve = cost_accuracy(case, solve=answer)

    assert [(corner.x, corner.bound_usd_per_h, corner.gap) for corner in curve.points] == [(90.0, 0.5, 0.75)]
    assert not curve.exact


def test_time_that_ends_leaves_a_curve_that_says_so() -> None:
    case = _one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.4})
    slow = _limited(lambda s: s if s.plan is not None and s.plan.accuracy == 50.0 else None)

    curve = cost_accuracy(case, solve=slow)

    assert [corner.x for corner in curve.points] == [50.0]
    assert not curve.finished
    assert not curve.exact
    assert curve.ended == ("nothing is known above 50: no plan was found in the time allowed",)
    with pytest.raises(SolverError, match="time allowed"):
        cost_accuracy(case, solve=_limited(lambda s: None))
    rates = cost_rate(case, [1.0], solve=_limited(lambda s: None))
    assert rates.points[0].reasons == ("no plan was found in the time allowed",)
    assert not rates.points[0].finished
    assert rates.highest is None
    assert not rates.exact


def _without_hints(solution: Solution) -> Solution:
    """As for a large problem, or when time ends: no nearest accuracy."""
    why = solution.infeasibility
    return solution if why is None else replace(solution, infeasibility=replace(why, nearest_accuracy=None))


LADDER = {"a": 50.0, "b": 50.2, "c": 50.7, "d": 50.8, "e": 60.0}


def test_a_step_beyond_the_last_finds_it_without_a_hint() -> None:
    case = _one(LADDER, {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "e": 9.0})
    curve = cost_accuracy(case, step=5.0, solve=_limited(_without_hints))

    assert [(corner.x, corner.cost_usd_per_h) for corner in curve.points] == [(50.0, 1.0), (50.8, 4.0)]
    assert curve.points == cost_accuracy(case, step=5.0).points
    assert curve.proven
    assert not curve.exact


def test_time_that_ends_within_the_last_step_proves_no_end() -> None:
    case = _one(LADDER, {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "e": 9.0})

    def answer(asked: Problem) -> Solution:
        if asked.slo.accuracy is not None and asked.slo.accuracy < 51:
            raise SolverError("no plan was found in the time allowed")
        return _without_hints(solve(asked))

    curve = cost_accuracy(case, step=5.0, solve=answer)

    assert [corner.x for corner in curve.points] == [50.0]
    assert not curve.finished
    assert not curve.proven


def test_a_gap_that_hides_a_cheaper_plan_leaves_no_dominated_corner() -> None:
    """Answers within a gap may cost more than a later, more accurate one."""
    case = _one({"a": 50.0, "b": 60.0, "c": 70.0}, {"a": 0.3, "b": 0.4, "c": 0.2})
    only = {None: "a", 50.0: "b", 60.0: "c"}

    def answer(asked: Problem) -> Solution:
        wanted = None if asked.slo.accuracy is None else float(int(asked.slo.accuracy))
        if wanted not in only:
            return solve(asked)
        variants = tuple(v for v in case.operators[0].variants if v.name == only[wanted])
        found = solve(replace(asked, operators=(replace(case.operators[0], variants=variants),)))
        return _unproven(found, 1.5, Termination.GAP)

    curve = cost_accuracy(case, solve=answer)

    assert [(corner.x, corner.cost_usd_per_h, corner.gap) for corner in curve.points] == [(70.0, 2.0, 0.25)]
    assert curve.finished
    assert not curve.exact


def test_progress_rises_to_its_total_in_the_search_and_in_the_checks() -> None:
    told: list[tuple[float, float]] = []
    found = cost_accuracy(vqa_problem(), progress=lambda done, total, label: told.append((done, total)))

    corners = len(found.points)
    search = [done for done, total in told if total == 100.0]
    assert search == sorted(search)
    assert told[len(search) :] == [(float(done), float(corners)) for done in range(corners + 1)]


def test_rates_up_to_the_highest() -> None:
    """Ten boxes carry 10 / 0.1 = 100/s at most; at 10/s one is enough."""
    curve = cost_rate(_one({"v": 50.0}, {"v": 0.1}), [2.0, 1.0, 20.0, 1.0, 30.0])

    assert curve.highest == pytest.approx(10.0, rel=1e-5)
    found = [(point.x, point.cost_usd_per_h) for point in curve.points]
    assert found == [(1.0, 1.0), (2.0, 2.0), (curve.highest, 10.0), (20.0, math.inf), (30.0, math.inf)]
    assert "capacity" in curve.points[3].reasons[0]
    assert curve.points[4].reasons == ("20 x is too much already",)
    assert curve.exact


def test_the_highest_rate_is_found_beyond_the_rates_asked_for() -> None:
    curve = cost_rate(_one({"v": 50.0}, {"v": 0.1}), [1.0])

    assert [point.x for point in curve.points] == [1.0, curve.highest]
    assert curve.highest == pytest.approx(10.0, rel=1e-5)


def test_a_rate_without_an_end_is_told() -> None:
    free = problem(operator("o", ["camera"], variant("v", {"box": 0.0})), pools=[box(), gpu()])
    curve = cost_rate(free, [1.0])

    assert curve.highest is None
    assert "is feasible" in curve.ended[0]


def test_rates_keep_the_accuracy_and_mark_the_budget() -> None:
    slo = Slo(accuracy=80.0, budget_usd_per_h=4.0)
    curve = cost_rate(_one({"low": 50.0, "high": 90.0}, {"low": 0.1, "high": 0.3}, slo=slo), [1.0, 2.0])

    assert [point.cost_usd_per_h for point in curve.points[:2]] == [3.0, 6.0]
    assert curve.points[0].breaches == ()
    assert "budget" in curve.points[1].breaches[0]
    assert all(point.plan is not None and point.plan.slo == slo for point in curve.points)


@pytest.mark.parametrize("scales", [[], [0.0], [-1.0, 2.0]])
def test_factors_must_be_above_zero(scales: list[float]) -> None:
    with pytest.raises(SolverError, match="above 0"):
        cost_rate(vqa_problem(), scales)
