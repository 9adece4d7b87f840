"""The curve of the least cost over the mean accuracy, on fleets whose curve is computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from jellybean_solver import (
    Curve,
    EndToEnd,
    LossKind,
    Objective,
    Plan,
    Problem,
    Sharing,
    Slo,
    Solution,
    SolverError,
    cost_accuracy,
    cost_mean_accuracy,
    cost_rate,
    solve,
)
from tests.support.small_problems import box, operator, problem, variant

RATE_PER_S, CAP = 10.0, 0.8
LOW, HIGH = (80.0, 0.02), (95.0, 0.1)  # accuracy, seconds: a box of 1 USD/h computes 40/s of one, 8/s of the other


def case(*, count: int = 5, slo: Slo = Slo(mean_accuracy=85.0)) -> Problem:
    """Low needs one box, and each box beside it computes high for 8 of the 10 requests per second."""
    variants = [variant("low", {"box": LOW[1]}), variant("high", {"box": HIGH[1]})]
    table = {("low",): LOW[0], ("high",): HIGH[0]}
    pools = [replace(box(count), sharing=Sharing.EXCLUSIVE)]
    made = problem(operator("o", ["camera"], *variants), pools=pools, accuracy=EndToEnd(("o",), table), slo=slo)
    return replace(made, utilisation=CAP)


def least_boxes(mean: float) -> int:
    """Boxes that a mean accuracy takes: some for the share of high, one for the rest."""
    share = (mean - LOW[0]) / (HIGH[0] - LOW[0])
    boxes = math.ceil(share * RATE_PER_S * HIGH[1] / CAP - 1e-9)
    return boxes + (share < 1.0)


def test_level_stretches_are_known_to_both_ends() -> None:
    curve = cost_mean_accuracy(case())

    found = [(point.x, point.cost_usd_per_h) for point in curve.points]
    assert [cost for _, cost in found] == pytest.approx([1.0, 2.0])
    assert [accuracy for accuracy, _ in found] == pytest.approx([80.0, 95.0])
    assert curve.points[1].start == pytest.approx(80.0, abs=0.2), "all above 80 costs a second box"
    assert curve.highest == pytest.approx(95.0, abs=0.02)
    assert curve.finished
    assert "95 is the highest mean accuracy found" in curve.ended[0]


def test_points_lie_where_they_do_by_hand_and_their_plans_have_their_means() -> None:
    curve = cost_mean_accuracy(replace(case(), utilisation=0.35), points=20)  # 3.5/s of high on a box

    for point in curve.points:
        share = (point.x - LOW[0]) / (HIGH[0] - LOW[0])
        high = math.ceil(share * RATE_PER_S / 3.5 - 1e-6)
        assert point.cost_usd_per_h == pytest.approx(high + (share < 1.0))
        assert point.bound_usd_per_h <= point.cost_usd_per_h
        assert point.plan is not None
        assert point.plan.slo.mean_accuracy == point.plan.accuracy == point.x
    costs = [point.cost_usd_per_h for point in curve.points]
    assert costs == sorted(set(costs)) == pytest.approx([1.0, 2.0, 3.0])
    assert all(one.x < two.start for one, two in pairwise(curve.points))


def test_an_accuracy_that_is_asked_for_gets_a_point() -> None:
    priced = cost_mean_accuracy(case(), accuracies=(85.0, 200.0, 10.0), points=3)

    point = priced.at_least(85.0)
    assert point is not None
    assert point.start <= 85.0 <= point.x
    assert point.cost_usd_per_h == pytest.approx(least_boxes(85.0))
    assert priced.at_least(95.1) is None


def test_what_no_plan_reaches_and_what_is_not_known_ends_the_curve() -> None:
    small = cost_mean_accuracy(case(count=1))
    assert [(point.x, point.cost_usd_per_h) for point in small.points] == [(80.0, 1.0)]

    none = cost_mean_accuracy(replace(case(), accuracy=EndToEnd(("o",), {})))
    assert none.points == ()
    assert none.ended


def test_the_budget_is_checked_and_marked() -> None:
    curve = cost_mean_accuracy(case(slo=Slo(mean_accuracy=85.0, budget_usd_per_h=1.5)), check=checked_at(80.0))

    assert curve.points[0].breaches == ("too slow",)
    assert "budget: 2.00 USD/h is 0.50 USD/h more" in curve.points[1].breaches[0]


def checked_at(accuracy: float):  # type: ignore[no-untyped-def]
    def check(plan: Plan) -> str | None:
        return "too slow" if plan.accuracy == pytest.approx(accuracy) else None

    return check


@pytest.mark.slow
def test_a_soft_target_and_the_objective_give_the_same_curve() -> None:
    def figures(curve: Curve) -> list[float]:
        return [figure for point in curve.points for figure in (point.x, point.cost_usd_per_h)]

    hard = figures(cost_mean_accuracy(case()))
    soft = case(slo=Slo(mean_accuracy=85.0, penalty_usd_per_h=0.1))
    best = replace(case(slo=Slo(budget_usd_per_h=1.0)), objective=Objective.MEAN_ACCURACY)
    assert figures(cost_mean_accuracy(soft)) == pytest.approx(hard)
    assert figures(cost_mean_accuracy(best)) == pytest.approx(hard)


def test_the_least_accuracy_of_any_request_holds_on_the_whole_curve() -> None:
    curve = cost_mean_accuracy(case(slo=Slo(accuracy=90.0, mean_accuracy=92.0)))
    assert [point.x for point in curve.points] == [95.0]


def test_losses_hold_at_every_point() -> None:
    curve = cost_mean_accuracy(case(slo=Slo(mean_accuracy=85.0, survives=(LossKind.WORKER,))))

    assert [round(point.cost_usd_per_h, 2) for point in curve.points] == [2.0, 3.0]
    assert all(point.plan is not None and point.plan.slo.survives == (LossKind.WORKER,) for point in curve.points)


def test_time_that_ends_leaves_what_was_found() -> None:
    solved = 0

    def limited(asked: Problem) -> Solution:
        nonlocal solved
        solved += 1
        if solved > 4:
            raise SolverError("time ended")
        return solve(asked)

    curve = cost_mean_accuracy(case(), solve=limited)
    assert not curve.finished
    assert "time ended" in curve.ended
    assert [point.cost_usd_per_h for point in curve.points] == pytest.approx([1.0, 2.0])
    solved = 5
    with pytest.raises(SolverError, match="time ended"):
        cost_mean_accuracy(case(), solve=limited)


def test_a_search_that_misses_a_plan_takes_that_of_a_higher_accuracy() -> None:
    def blind(asked: Problem) -> Solution:
        mean = asked.slo.mean_accuracy
        found = solve(asked)
        return replace(found, plan=None) if mean is not None and 80.0 < mean < 95.0 else found

    curve = cost_mean_accuracy(case(), solve=blind)
    assert [point.cost_usd_per_h for point in curve.points] == pytest.approx([1.0, 2.0])
    assert curve.points[1].bound_usd_per_h == pytest.approx(1.0), "nothing better is proven"


def test_a_curve_whose_highest_mean_is_not_found_is_not_finished() -> None:
    def blind(asked: Problem) -> Solution:
        found = solve(asked)
        return replace(found, plan=None) if asked.objective is Objective.MEAN_ACCURACY else found

    curve = cost_mean_accuracy(case(), solve=blind)
    assert [point.x for point in curve.points] == [80.0]
    assert not curve.finished
    assert curve.ended == ("nothing is known above 80: no plan of the highest mean accuracy was found",)


def test_corners_of_one_selection_hold_after_losses() -> None:
    asked = case(slo=Slo(survives=(LossKind.WORKER,)))
    curve = cost_accuracy(asked)

    found = [(corner.x, round(corner.cost_usd_per_h, 4)) for corner in curve.points]
    assert found == [(80.0, 2.0), (95.0, 3.0)], "one box more than without losses"
    assert [corner.x for corner in cost_accuracy(asked, least=81.0).points] == [95.0]


def test_the_highest_rate_is_found_by_bisection() -> None:
    mixed = cost_rate(case(), (1.0, 2.0))
    assert [point.cost_usd_per_h for point in mixed.points[:2]] == pytest.approx([2.0, 2.0])
    # A third of the requests gets high: 3 boxes of 8/s are enough for 72/s, and 2 of 40/s for the rest.
    assert mixed.highest is not None
    assert 7.2 * (1 - 0.004) <= mixed.highest <= 7.2 * (1 + 1e-6)

    lossy = cost_rate(case(slo=Slo(accuracy=90.0, survives=(LossKind.WORKER,))), (1.0,))
    assert lossy.points[0].cost_usd_per_h == pytest.approx(3.0)
    assert lossy.highest is not None
    assert 3.2 * (1 - 0.004) <= lossy.highest <= 3.2 * (1 + 1e-6), "4 of 5 boxes of 8/s are left"


def test_a_soft_target_by_rate_has_bounds_of_the_cost() -> None:
    soft = cost_rate(case(slo=Slo(mean_accuracy=95.0, penalty_usd_per_h=0.05)), (1.0,))
    point = soft.points[0]
    assert point.cost_usd_per_h == pytest.approx(1.0), "15 points are worth 0.75 USD/h, a second box costs 1"
    assert point.bound_usd_per_h == pytest.approx(1.0, rel=1e-4)
