"""The incumbent of a fleet search, which knows whether a MILP in a thread has found it."""

from __future__ import annotations

import math

import pytest

from jellybean_solver import Network
from jellybean_solver.fleet.incumbent import Incumbent
from jellybean_solver.fleet.settings import DEFAULT_SETTINGS
from jellybean_solver.small.assignment import Assignment
from tests.support.small_problems import box, operator, problem, variant


def test_a_plan_that_the_search_itself_finds_is_not_of_a_thread() -> None:
    asked = problem(operator("o", ["camera"], variant("v", {"box": 0.1})), pools=[box(2)])
    incumbent = Incumbent(Network(asked), None, math.inf, 0.01, None)
    assert incumbent.take({"o": "v"}, Assignment(3.0, (), ()), of_thread=True)
    assert incumbent.of_thread
    assert not incumbent.take({"o": "v"}, Assignment(4.0, (), ()))
    assert incumbent.of_thread and incumbent.cost == 3.0
    assert incumbent.take({"o": "v"}, Assignment(2.0, (), ()))
    assert not incumbent.of_thread and incumbent.goal() == 2.0 * 0.99


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-3])
def test_what_is_pruned_for_good_never_keeps_the_bound_below_the_goal(gap: float) -> None:
    asked = problem(operator("o", ["camera"], variant("v", {"box": 0.1})), pools=[box(2)])
    incumbent = Incumbent(Network(asked), None, math.inf, gap, None)
    assert incumbent.cheaper(1.0) == math.inf
    incumbent.take({"o": "v"}, Assignment(3.0, (), ()))
    assert incumbent.goal() < incumbent.cheaper(DEFAULT_SETTINGS.pruned_share) < incumbent.cost
