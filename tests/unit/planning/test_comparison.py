"""The baselines that a plan is compared with: not those that say nothing about it."""

from __future__ import annotations

from jellybean.planning import Planned
from jellybean_solver import NO_ASSIGNMENT, baselines, solve
from tests.support.small_problems import box, operator, problem, variant


def test_a_rule_that_finds_no_assignment_is_not_compared_with() -> None:
    first = operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 0.0}))
    second = operator("b", ["a"], variant("y", {"box": 0.01}))
    case = problem(first, second, pools=[box(1)])  # one worker, which the greedy rule does not share
    solution, compared = solve(case), baselines(case)
    planned = Planned(case, solution, (), compared)
    assert [baseline.status for baseline in compared].count(NO_ASSIGNMENT) == 1
    assert [name for name, _, _ in planned.comparison] == [one.name for one in compared if one.status != NO_ASSIGNMENT]
