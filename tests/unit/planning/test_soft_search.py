"""Plans of least cost and penalties, among plans that are numbers of boxes: more of them are faster and cost more."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jellybean.planning import soft_plan
from jellybean.planning.planned import Planned
from jellybean.planning.simulated_deadline import Solve, no_progress
from jellybean.planning.soft_plan import SHARES, SoftSearch
from jellybean_solver import (
    Certificate,
    Clock,
    Deadline,
    Infeasibility,
    Plan,
    Problem,
    Slo,
    Solution,
    Termination,
    solve,
)
from tests.support.small_problems import box, operator, problem, variant

PENALTY = 2.0  # USD per hour and second


def _asked(target_s: float) -> Problem:
    step = operator("see", ["camera"], variant("v", {"box": 0.1}))
    slo = Slo(soft_latency_p99_s=target_s, latency_penalty_usd_per_h_per_s=PENALTY)
    return problem(step, pools=[box(10)], rate_per_s=5.0, slo=slo)


def _boxes(asked: Problem, number: int) -> Plan:
    plan = solve(replace(asked, slo=Slo())).plan
    assert plan is not None
    cost = replace(plan.cost, compute_usd_per_h=0.1 * number, network_usd_per_h=0.0)
    return replace(plan, slo=asked.slo, cost=cost, name=f"{number}")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of n boxes has a p99 latency of 1 s / n."""
    monkeypatch.setattr(soft_plan, "simulated_p99_s", lambda plan, *_: ({"": 1.0 / int(plan.name)}, True))
    monkeypatch.setattr(soft_plan, "judged_latency", lambda plan: None)
    monkeypatch.setattr(soft_plan, "judged_so_far", lambda plan: None)
    monkeypatch.setattr(soft_plan, "check_latency", lambda *_: None)


def _solution(plan: Plan, bound: float) -> Solution:
    proof = Certificate.of(plan.cost.total_usd_per_h, bound, Termination.GAP)
    return Solution(replace(plan, certificate=proof))


def _solver(asked: Problem, tried_s: list[float], most: int = 10) -> Solve:
    """Finds the least number of boxes in time, up to `most`, and proves nine tenths of their cost."""

    def solve_it(changed: Problem, deadline: Deadline | None, limit_s: float | None) -> Solution:
        target_s = changed.slo.latency_p99_s or math.inf
        tried_s.append(target_s)
        number = max(1, math.ceil(1.0 / target_s - 1e-3))
        if number > most:
            return Solution(None, Infeasibility(("too late",), least_usd_per_h=0.1 * most))
        return _solution(replace(_boxes(changed, number), slo=asked.slo), 0.09 * number)

    return solve_it


def _value(number: int, target_s: float) -> float:
    return 0.1 * number + PENALTY * max(0.0, 1.0 / number - target_s)


@pytest.mark.parametrize("target_s", [0.05, 0.1, 0.3, 0.9])
def test_the_best_of_the_shares_is_found_with_a_valid_bound(target_s: float) -> None:
    asked, tried_s = _asked(target_s), list[float]()
    cheapest = _solution(_boxes(asked, 1), 0.09)
    search = SoftSearch(asked, cheapest, _solver(asked, tried_s), Clock(), no_progress)
    search.run()
    assert tried_s[0] == pytest.approx(target_s, rel=1e-3)
    assert len(tried_s) <= SHARES
    values = [_value(number, target_s) for number in range(1, 11)]
    assert min(values) - 1e-9 <= search.least_value <= values[0]
    assert search.bound <= min(values) + 1e-9
    if target_s >= 0.3:
        assert search.least_value == pytest.approx(min(values))


def test_the_cheapest_plan_is_the_best_where_it_meets_the_target() -> None:
    asked, tried_s = _asked(1.5), list[float]()
    cheapest = _solution(_boxes(asked, 1), 0.1)
    search = SoftSearch(asked, cheapest, _solver(asked, tried_s), Clock(), no_progress)
    search.run()
    found = search.result(Planned(asked, cheapest))
    assert not tried_s
    assert found.plan is not None and found.plan.certificate.is_optimal
    assert found.best == "" and found.cheapest is None


def test_a_target_that_no_plan_meets_is_no_end() -> None:
    asked, tried_s = _asked(0.05), list[float]()
    search = SoftSearch(asked, _solution(_boxes(asked, 1), 0.09), _solver(asked, tried_s, 4), Clock(), no_progress)
    search.run()
    assert len(tried_s) > 1
    assert search.least_value == pytest.approx(min(_value(number, 0.05) for number in range(1, 5)), rel=0.25)
    found = search.result(Planned(asked, _solution(_boxes(asked, 1), 0.09)))
    assert found.plan is not None and "p99 target" in found.best
    assert found.plan.certificate.bound <= found.plan.certificate.objective


def test_time_that_is_over_ends_the_search() -> None:
    asked, tried_s = _asked(0.1), list[float]()
    over = Clock(lambda: 0.0, 0.0)
    search = SoftSearch(asked, _solution(_boxes(asked, 1), 0.09), _solver(asked, tried_s), over, no_progress)
    search.run()
    assert (tried_s, search.out_of_time) == ([], True)
