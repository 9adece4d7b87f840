"""Plans that meet a p99 latency target in simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning import in_time
from jellybean.planning.predicted_latency import check_latency, judged_latency
from jellybean.planning.simulated_deadline import PRECISION, planned_anew
from jellybean_solver import (
    Arrivals,
    Independent,
    Link,
    Pool,
    Problem,
    Slo,
    evaluate,
    solve,
)
from tests.support.small_problems import box, operator, problem, variant


def _asked(p99_s: float, boxes: int = 10) -> Problem:
    """Two boxes at a load of 0.9 are late, three at 0.6 are not."""
    step = operator("see", ["camera"], variant("v", {"box": 0.1}))
    asked = problem(step, pools=[box(boxes)], rate_per_s=18.0, slo=Slo(latency_p99_s=p99_s))
    return replace(asked, sources=tuple(replace(source, arrivals=Arrivals.POISSON) for source in asked.sources))


@pytest.mark.slow
def test_the_cheapest_plan_in_time_is_found_and_judged_by_simulation() -> None:
    asked = _asked(0.35)
    cheapest = solve(asked)
    assert cheapest.plan is not None and check_latency(cheapest.plan) is not None
    for thorough in (True, False):
        found = in_time(asked, cheapest, planned_anew(0.0), None, thorough=thorough)
        plan = found.solution.plan
        assert plan is not None and not found.reasons
        assert len(plan.workers) == 3
        assert check_latency(plan) is None and evaluate(asked, plan).complaints == ()
        assert found.judged is not None and found.judged.kept and found.judged.share <= 1.0
        assert found.cheapest is not None and found.cheapest.plan == cheapest.plan and not found.cheapest.kept
        assert plan.certificate.bound <= plan.cost.total_usd_per_h


@pytest.mark.slow
def test_a_plan_in_time_is_left_as_it_is() -> None:
    asked = _asked(30.0)
    cheapest = solve(asked)
    found = in_time(asked, cheapest, planned_anew(0.0), None)
    assert found.solution is cheapest and found.judged is not None and found.judged.kept


@pytest.mark.slow
def test_where_no_plan_is_in_time_the_nearest_target_is_named() -> None:
    asked = _asked(0.11, boxes=3)  # a run alone takes 0.1 s
    cheapest = solve(asked)
    found = in_time(asked, cheapest, planned_anew(0.0), None)
    assert found.reasons and "is too slow" in found.reasons[0]
    assert found.nearest_p99_s is not None and found.nearest_p99_s > 0.11
    assert "slo.latency_p99" in found.reasons[-1] and "simulated" in found.reasons[-1]
    assert found.fastest is not None
    judged = judged_latency(replace(found.fastest, slo=Slo(latency_p99_s=found.nearest_p99_s)))
    assert judged is not None and judged.kept


@pytest.mark.slow
def test_a_soft_mean_accuracy_that_no_plan_reaches_does_not_end_the_search() -> None:
    soft = Slo(latency_p99_s=0.11, mean_accuracy=99.0, penalty_usd_per_h=0.01)
    asked = replace(_asked(0.11, boxes=3), slo=soft, accuracy=Independent({"see": {"v": 80.0}}))
    found = in_time(asked, solve(asked), planned_anew(0.0), None)
    assert found.nearest_p99_s is not None and found.nearest_p99_s > 0.11
    assert "slo.latency_p99" in found.reasons[-1]


def test_without_time_for_a_simulation_no_target_is_named_where_links_are_full() -> None:
    """The closed form has no finite p99 then, so that there is nothing to name."""
    step = operator("see", ["camera"], variant("v", {"gpu": 0.01}))
    links = (Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=1e6),)
    asked = replace(
        problem(step, pools=[Pool("gpu", "cloud", 2, 1.0)], rate_per_s=10.0, message_bytes=1e5), links=links
    )
    asked = replace(asked, slo=Slo(latency_p99_s=0.5))
    found = in_time(asked, solve(asked), planned_anew(0.0), 1e-6)
    assert found.reasons and found.nearest_p99_s is None and found.solution.plan is not None


def _skewed(p99_s: float) -> Problem:
    """A slow box is cheap; a fast gpu at low load answers in 20 ms, which a target of 10 ms does not allow."""
    step = operator("see", ["camera"], variant("v", {"box": 0.1, "gpu": 0.02}))
    asked = problem(step, pools=[box(10), replace(box(4), name="gpu", price_usd_per_h=9.0)], rate_per_s=18.0)
    return replace(asked, slo=Slo(latency_p99_s=p99_s))


@pytest.mark.slow
def test_the_nearest_p99_is_the_least_of_any_plan_not_that_of_the_cheapest() -> None:
    asked = _skewed(0.01)
    cheapest = solve(asked)
    assert cheapest.plan is not None and cheapest.plan.placements[0].pool == "box"
    steps: list[str] = []
    found = in_time(asked, cheapest, planned_anew(0.0), None, progress=lambda done, total, label: steps.append(label))
    assert found.fastest is not None and {place.pool for place in found.fastest.placements} == {"gpu"}
    assert found.nearest_p99_s is not None and found.nearest_p99_s < 0.05
    assert "below 20.0 ms there is none" in found.reasons[-1]
    assert steps and all("least p99 so far" in step for step in steps)


@pytest.mark.slow
def test_what_is_named_is_what_the_command_plan_finds_for_it() -> None:
    asked = _skewed(0.01)
    cheapest = solve(asked)
    nearest = in_time(asked, cheapest, planned_anew(0.0), None)
    assert nearest.fastest is not None and nearest.nearest_p99_s is not None
    for target_s in (0.01, 0.015):  # both below the least latency without queues
        refused = in_time(_skewed(target_s), cheapest, planned_anew(0.0), None)
        assert refused.nearest_p99_s == pytest.approx(nearest.nearest_p99_s, rel=PRECISION)
    again = _skewed(nearest.nearest_p99_s)
    planned = in_time(again, solve(again), planned_anew(0.0), None)
    assert planned.solution.plan is not None and not planned.reasons
    assert planned.solution.plan.cost == nearest.fastest.cost


@pytest.mark.slow
def test_a_time_limit_that_ended_the_search_for_the_least_p99_is_said() -> None:
    asked = _skewed(0.01)
    limited = in_time(asked, solve(asked), planned_anew(0.0), 0.0)
    assert "as the time limit ended the search" in limited.reasons[-1]
    assert limited.nearest_p99_s is not None and limited.fastest is not None
    assert "limit" not in in_time(asked, solve(asked), planned_anew(0.0), None).reasons[-1]
