"""Solve the changed problems of a curve in a given time; soft p99 targets are weighed, and mixtures meet hard ones."""

from __future__ import annotations

import time

from jellybean.planning.project_plan import QUICK_S, settle
from jellybean.planning.soft_targets import soft_targets
from jellybean_solver import (
    DEFAULT_GAP,
    Clock,
    Infeasibility,
    OutOfTimeError,
    Problem,
    Solution,
    SolveOptions,
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
        gap = None if problem.is_for_ways or has_many_workflows(problem) else DEFAULT_GAP
        options = SolveOptions(gap, share_s, time.monotonic, explained=not problem.workflows)
        clock = limited(share_s, time.monotonic)
        try:
            with limited_to(clock):
                solution = solve_with(problem, options)
        except OutOfTimeError as error:  # the first point is then that of a simple rule
            patience = Clock(time.monotonic, time.monotonic() + QUICK_S)
            rule = None if self.has_plan else quick_solution(problem, patience, error.bound)
            if rule is None:
                raise
            solution = rule
        self.has_plan = self.has_plan or solution.plan is not None
        with limited_to(clock):
            return _settled(problem, solution)


def _settled(problem: Problem, solution: Solution) -> Solution:
    """The plan with which soft p99 targets cost least, or that of a mixture that meets hard ones in simulation.

    Other plans are checked afterwards.
    """
    weighs = not problem.may_mix
    plan, is_timed = solution.plan, bool(soft_targets(problem)) if weighs else problem.deadline_s is not None
    if plan is None or not is_timed:
        return solution
    settled = settle(problem, solution, nearest=False, weigh=weighs)
    if weighs or not settled.reasons:
        return settled.solution
    return Solution(None, Infeasibility(settled.reasons, least_usd_per_h=plan.certificate.bound), 1)
