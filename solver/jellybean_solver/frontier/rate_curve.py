"""The curve of cost over rate: the cheapest plan at several factors on the rates, and at the highest feasible one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.frontier.curve import (
    Check,
    Curve,
    CurvePoint,
    Figure,
    Progress,
    Solve,
    bound_usd_per_h,
    checked,
    plan_of,
)
from jellybean_solver.frontier.moved_targets import MovedTargets, at_any_latency
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import COST_TOLERANCE
from jellybean_solver.planning.solve import solve

HIGHEST_PRECISION = 0.002  # relative: of the highest rate where the solver does not state it
GROWTH, PROBES = 4.0, 6  # search for the highest feasible rate: growth factor per step, maximum number of steps


def cost_rate(
    problem: Problem,
    scales: Iterable[float],
    *,
    workflows: Sequence[str] = (),
    solve: Solve = solve,
    check: Check = lambda plan: None,
    progress: Progress = lambda done, total, label: None,
) -> Curve:
    """The cheapest plan with the rates multiplied by each of `scales`, and by the highest feasible factor.

    The accuracy targets are the problem's. `workflows`: those of several whose rates are multiplied, by default all.
    `solve` and `check`: as for `cost_accuracy`; if plans may mix variants, `solve` is also told the p99 target. If time
    ends before a plan is found at a factor, its point is not `finished`. All workflows are served, whatever they are
    worth. Where the solver does not state the highest factor it is found by bisection, to `HIGHEST_PRECISION`: of plans
    that mix variants or bear losses, and of several workflows.
    """
    wanted = sorted(set(scales))
    if not wanted or wanted[0] <= 0:
        raise SolverError(f"rates are multiplied by factors above 0, not by {wanted[0] if wanted else 'none'}")
    targets = MovedTargets.of(problem, workflows)
    search = _RateSearch(targets, solve)
    points: list[CurvePoint] = []
    beyond: CurvePoint | None = None
    for number, scale in enumerate(wanted):
        progress(number, len(wanted) + 1, f"{scale:.4g} x the rates")
        if beyond is not None:
            points.append(replace(beyond, x=scale, reasons=(f"{beyond.x:.4g} x is too much already",)))
            continue
        points.append(search.point(scale))
        beyond = points[-1] if points[-1].plan is None and points[-1].finished else None
    progress(len(wanted), len(wanted) + 1, "the highest rate")
    reached = max((point.x for point in points if point.plan is not None), default=0.0)
    if beyond is None and points[-1].plan is not None:
        beyond = search.beyond(wanted[-1])
    highest, beyond = (None, None) if beyond is None else search.highest(reached, beyond)
    if highest is not None and highest != reached:
        points = sorted([*points, search.point(highest)], key=lambda point: point.x)
    progress(len(wanted) + 1, len(wanted) + 1, "done")
    ended = beyond.reasons if beyond is not None else ("time ended before the highest rate was found",)
    found = tuple(checked(one, targets, targets.scaled(problem, one.x), lambda slo: slo, check) for one in points)
    is_known = any(one.x == highest and one.plan is not None for one in found)
    finished = is_known and all(one.finished for one in found)
    return Curve(Figure.RATE, found, finished, ended, highest=highest if is_known else None)


class _RateSearch:
    """Cheapest plans at factors on the rates. `stated`: the highest one by the solver's latest word; None: unknown."""

    def __init__(self, targets: MovedTargets, solve: Solve) -> None:
        self.targets, self.solve = targets, solve
        self.asked = targets.asked(lambda slo: slo)
        if not self.asked.may_mix:  # the p99 is checked afterwards
            self.asked = targets.asked(at_any_latency, at_any_latency)
        self.stated: float | None = None

    def point(self, scale: float) -> CurvePoint:
        """The cheapest plan at a factor."""
        try:
            solution = self.solve(self.targets.scaled(self.asked, scale))
        except SolverError as error:
            return CurvePoint(scale, None, reasons=(str(error),), finished=False)
        plan = plan_of(solution)
        if plan is not None:
            return CurvePoint(scale, plan, bound_usd_per_h(plan))
        why = solution.infeasibility
        # What is stated of rates is of the rates of all workflows, and of a solution with ways of other plans.
        is_stated = why is not None and self.targets.is_all and not self.asked.is_for_ways
        nearest = why.nearest_rate_scale if why is not None and is_stated else None
        self.stated = None if nearest is None else scale * nearest
        reasons = () if why is None else why.reasons
        return CurvePoint(scale, None, math.inf, reasons=reasons or (f"there is none at {scale:.4g} x the rates",))

    def beyond(self, scale: float) -> CurvePoint:
        """A point without a plan above a feasible factor; not `finished` if none is known."""
        for _ in range(PROBES):
            scale *= GROWTH
            point = self.point(scale)
            if point.plan is None:
                return point
        return CurvePoint(scale, None, reasons=(f"even {scale:.4g} x the rates is feasible",), finished=False)

    def highest(self, low: float, beyond: CurvePoint) -> tuple[float | None, CurvePoint]:
        """The highest feasible factor, from a feasible one `low`, and the lowest one known without a plan.

        The factor is None if it is unknown, as where time ends.
        """
        if not beyond.finished:
            return None, beyond
        if self.stated is not None:
            return (low if low >= self.stated * (1 - 2 * COST_TOLERANCE) else self.stated), beyond
        if low == 0.0:
            return None, beyond
        while beyond.x > low * (1.0 + HIGHEST_PRECISION):
            point = self.point(math.sqrt(low * beyond.x))
            if not point.finished:
                return None, point
            low, beyond = (low, point) if point.plan is None else (point.x, beyond)
        return low, replace(beyond, reasons=(f"{beyond.x:.4g} x the rates has no plan", *beyond.reasons))
