"""Solve the changed problems of a curve in a given time; soft p99 targets are weighed, and mixtures meet hard ones."""

from __future__ import annotations

import time

from jellybean.planning.project_plan import QUICK_S, settle
from jellybean.planning.simulated_deadline import in_time, planned_anew
from jellybean.planning.soft_targets import soft_targets
from jellybean_solver import (
    DEFAULT_GAP,
    Clock,
    Infeasibility,
    OutOfTimeError,
    Problem,
    Solution,
    SolveOptions,
    deadline_s,
    has_many_workflows,
    limited,
    limited_to,
    quick_solution,
    solve_with,
)

LEAST_S = 1.0  # for one solve, in which small problems are solved
LEAST_LEFT_S = 0.05  # less is no search, and ends the curve
AHEAD = 3.0  # times its equal share of the time left that one solve may take, as most need less
LEAST_EXPECTED = 7  # solves for which time is left at least, as curves do not say how many corners they have


class TimedSolver:
    """Solves problems, each within its share of the time left. OutOfTimeError once there is none.

    `expected`: how many solves there will be; 0: unknown.
    """

    def __init__(self, clock: Clock, expected: int = 0) -> None:
        self.clock, self.expected, self.solves, self.has_plan = clock, expected, 0, False

    def __call__(self, problem: Problem) -> Solution:
        """The best plan of a problem, or why there is none."""
        left_s = self.clock.left()
        if left_s is not None and left_s < LEAST_LEFT_S:
            raise OutOfTimeError(f"time ended after {self.solves} solves; --time-limit allows more")
        remaining = max(LEAST_EXPECTED, self.expected - self.solves)
        share_s = None if left_s is None else min(left_s, max(LEAST_S, AHEAD * left_s / remaining))
        self.solves += 1
        clock = limited(share_s, time.monotonic)
        try:
            with limited_to(clock):
                solution = _solved(problem, share_s)
        except OutOfTimeError as error:  # the first point is then that of a simple rule
            patience = Clock(time.monotonic, time.monotonic() + QUICK_S)
            rule = None if self.has_plan else quick_solution(problem, patience, error.bound)
            if rule is None:
                raise
            solution = rule
        self.has_plan = self.has_plan or solution.plan is not None
        return _in_time(problem, solution, clock.left())


def _solved(problem: Problem, limit_s: float | None) -> Solution:
    gap = None if problem.is_for_ways or has_many_workflows(problem) else DEFAULT_GAP
    solution = solve_with(problem, SolveOptions(gap, limit_s, time.monotonic, explained=not problem.workflows))
    is_weighed = soft_targets(problem) and not problem.may_mix
    return settle(problem, solution, nearest=False).solution if is_weighed else solution


def _in_time(problem: Problem, solution: Solution, limit_s: float | None) -> Solution:
    """The plan of a mixture that meets the p99 target in simulation; other plans are checked afterwards."""
    if solution.plan is None or deadline_s(problem) is None or not problem.may_mix:
        return solution
    found = in_time(problem, solution, planned_anew(DEFAULT_GAP), limit_s, nearest=False)
    if not found.reasons:
        return found.solution
    reasons = Infeasibility(found.reasons, least_usd_per_h=solution.plan.certificate.bound)
    return Solution(None, reasons, 1)
