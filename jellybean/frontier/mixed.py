"""The curves of a project whose plans may mix variants, in a given time: cost over the mean accuracy and over the rate.

With a p99 latency target each point is a plan that meets it in simulation, found as by `jellybean plan`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jellybean.planning.deadline.predicted_latency import check_latency
from jellybean.planning.deadline.simulated_deadline import in_time
from jellybean.planning.project_plan import QUICK_S
from jellybean_solver import (
    DEFAULT_GAP,
    Clock,
    CostAccuracy,
    CostRate,
    Infeasibility,
    MixedCurve,
    MovedTargets,
    Objective,
    OutOfTimeError,
    Plan,
    Problem,
    Progress,
    Solution,
    SolveOptions,
    SolverError,
    cost_accuracy,
    cost_mean_accuracy,
    cost_rate,
    deadline_s,
    limited,
    quick_solution,
    solve_with,
)

LIMIT_S = 60.0  # of all curves of mixtures, or of several workflows: as long as people wait for a picture
POINTS, TIMED_POINTS = 15, 7  # of the curve, and of one with a p99 target, where each point takes a search
LEAST_S = 1.0  # for one plan, in which small problems are solved
AHEAD = 3.0  # times its equal share of the time left that one solve may take, as most need less
CURVE_SHARE, BESIDE_RATES_SHARE = 0.8, 0.5  # of the time, for cost over accuracy: alone, and beside cost over rate
RATE_SOLVES = 12  # beside one for each rate: those that find the highest one
STAIRS = 24  # steps at most of the curve of one selection, which is only there to be compared with


@dataclass(frozen=True, slots=True)
class MixedCurves:
    """`wanted`: the mean accuracy of the plan that `jellybean plan` chooses; None if there is none.

    `single`: the curve of plans with one selection for all requests.
    """

    mixed: MixedCurve
    wanted: float | None
    single: CostAccuracy
    rates: CostRate | None


class TimedSolver:
    """Solves changed problems, each within its share of the time left. OutOfTimeError once there is none.

    `expected`: how many solves there will be.
    """

    def __init__(self, clock: Clock, expected: int) -> None:
        self.clock, self.expected, self.made = clock, expected, 0
        self.has_plan = False

    def __call__(self, problem: Problem) -> Solution:
        """The best plan of a problem that meets the p99 target, or why there is none."""
        left_s = self.clock.left()
        if left_s == 0.0:
            raise OutOfTimeError(f"time ended after {self.made} solves; --time-limit allows more")
        share_s = None
        if left_s is not None:
            share_s = min(left_s, max(LEAST_S, AHEAD * left_s / max(1, self.expected - self.made)))
        self.made += 1
        own = limited(share_s, time.monotonic)
        try:
            solution = solve_with(problem, SolveOptions(None, share_s, time.monotonic))
        except OutOfTimeError as error:  # the first point is then that of a simple rule
            patience = Clock(time.monotonic, time.monotonic() + QUICK_S)
            rule = None if self.has_plan else quick_solution(problem, patience, error.bound)
            if rule is None:
                raise
            solution = rule
        self.has_plan = self.has_plan or solution.plan is not None
        if solution.plan is None or deadline_s(problem) is None or not problem.may_mix:
            return solution
        found = in_time(problem, solution, DEFAULT_GAP, own.left(), nearest=False)
        if not found.reasons:
            return found.solution
        least = 0.0 if solution.certificate is None else solution.certificate.bound
        return Solution(None, Infeasibility(found.reasons, least_usd_per_h=least), 1)


def mixed_curves(
    problem: Problem,
    *,
    scales: Sequence[float] = (),
    points: int | None = None,
    step: float = 0.0,
    workflows: Sequence[str] = (),
    limit_s: float | None = None,
    current_accuracy: float | None = None,
    check: Callable[[Plan], str | None] = check_latency,
    progress: Progress = lambda done, total, label: None,
) -> MixedCurves:
    """The curves, within about `limit_s` seconds. `current_accuracy`: of the current plan; it gets a point of its own.

    `points`: accuracies that are solved for; `step`: percent points between two of them at least.
    """
    clock = limited(limit_s or LIMIT_S, time.monotonic)
    count = points or (POINTS if deadline_s(problem) is None else TIMED_POINTS)
    curve = TimedSolver(clock.share(BESIDE_RATES_SHARE if scales else CURVE_SHARE), 2 * count)
    moved = MovedTargets.of(problem, workflows)
    wanted = wanted_accuracy(moved, curve)
    accuracies = [one for one in (wanted, current_accuracy) if one is not None]
    mixed = cost_mean_accuracy(
        problem, accuracies=accuracies, points=count, step=step, workflows=workflows, solve=curve, check=check,
        progress=progress,
    )  # fmt: skip
    by_rate = None
    if scales:
        rated = TimedSolver(clock.share(CURVE_SHARE), len(scales) + RATE_SOLVES)
        by_rate = cost_rate(problem, scales, solve=rated, check=check, progress=progress)
    return MixedCurves(mixed, wanted, _single_selection(moved, mixed, clock), by_rate)


def wanted_accuracy(targets: MovedTargets, solve: Callable[[Problem], Solution]) -> float | None:
    """The mean accuracy of the plan that `jellybean plan` chooses: the target, or what a soft one or a budget gives.

    Of several workflows it is known without a search only if one is moved, or all have one target.
    """
    problem = targets.problem
    stated = {slo.mean_accuracy for slo in targets.slos}
    is_soft = any(slo.penalty_usd_per_h is not None for slo in targets.slos)
    if problem.objective is Objective.COST and not is_soft and len(stated) == 1:
        return stated.pop()
    try:
        plan = solve(problem).plan
    except SolverError:
        return None
    return None if plan is None else targets.reached(plan)


def _single_selection(targets: MovedTargets, mixed: MixedCurve, clock: Clock) -> CostAccuracy:
    """The curve of plans with one selection for all requests that meet the p99 target, in the time that is left."""
    if not mixed.points:
        return CostAccuracy((), False, ())
    solver = TimedSolver(clock, STAIRS)

    def check(plan: Plan) -> str | None:
        return check_latency(plan) if clock.left() != 0.0 else "time ended before its p99 latency was simulated"

    span = mixed.points[-1].accuracy - mixed.points[0].accuracy
    single = targets.asked(lambda slo: replace(slo, mean_accuracy=None, penalty_usd_per_h=None))
    least = max((slo.accuracy for slo in targets.slos if slo.accuracy is not None), default=None)
    try:
        curve = cost_accuracy(
            single, step=span / STAIRS, least=least, workflows=targets.workflows, solve=solver, check=check
        )
    except SolverError as error:
        return CostAccuracy((), False, (str(error),))
    return replace(curve, corners=tuple(corner for corner in curve.corners if not corner.breaches))
