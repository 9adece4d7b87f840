"""The curve of cost over rate: the cheapest plan at several factors on all rates, and at the highest feasible one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from jellybean_solver.errors import SolverError
from jellybean_solver.frontier.curves import Check, Progress, Solve, bound_usd_per_h, breaches_of, plan_of
from jellybean_solver.model.multi_workflow import all_served
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.outcome import COST_TOLERANCE, relative_gap
from jellybean_solver.planning.infeasibility import scaled
from jellybean_solver.planning.solve import solve

HIGHEST_PRECISION = 0.002  # relative: of the highest rate of plans that mix variants, whose programs know no factor
GROWTH, PROBES = 4.0, 6  # search for the highest feasible rate: growth factor per step, maximum number of steps


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The cheapest plan at `scale` times the problem's rates; None with `reasons` if there is none.

    `breaches`: limits that the plan breaks, as sentences. `finished`: False if time ended before feasibility was known.
    """

    scale: float
    plan: Plan | None
    bound_usd_per_h: float
    breaches: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    finished: bool = True

    @property
    def cost_usd_per_h(self) -> float | None:
        """What the plan costs, with what its p99 latencies count above soft targets."""
        return None if self.plan is None else self.plan.cost.total_usd_per_h + self.plan.late_usd_per_h

    @property
    def gap(self) -> float | None:
        """Relative gap between cost and lower bound; 0 if proven optimal, None without a plan."""
        cost = self.cost_usd_per_h
        return None if cost is None else relative_gap(cost, self.bound_usd_per_h, COST_TOLERANCE)


@dataclass(frozen=True, slots=True)
class CostRate:
    """Points by ascending rate. `highest_scale`: the largest feasible scale, which is one of them; None if unknown.

    `ended`: why no higher scale is feasible, or why the highest is unknown, as sentences.
    """

    points: tuple[RatePoint, ...]
    highest_scale: float | None
    ended: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """True if every point is proven and the highest scale is known."""
        return self.highest_scale is not None and all(point.finished and not point.gap for point in self.points)


def cost_rate(
    problem: Problem,
    scales: Iterable[float],
    *,
    solve: Solve = solve,
    check: Check = lambda plan: None,
    progress: Progress = lambda done, total, label: None,
) -> CostRate:
    """The cheapest plan with all rates multiplied by each of `scales`, and by the highest feasible factor.

    The accuracy targets are the problem's. `solve` and `check`: as for `cost_accuracy`; if plans may mix variants,
    `solve` is also told the p99 target. If time ends before a plan is found at a factor, its point is not `finished`.
    All workflows are served, whatever they are worth. The highest factor of plans that mix variants or bear losses is
    found by bisection, to `HIGHEST_PRECISION`.
    """
    wanted = sorted(set(scales))
    if not wanted or wanted[0] <= 0:
        raise SolverError(f"rates are multiplied by factors above 0, not by {wanted[0] if wanted else 'none'}")
    asked = all_served(replace(problem, slo=_targets_by_rate(problem), objective=Objective.COST, most={}))
    points: list[RatePoint] = []
    infeasible: RatePoint | None = None
    highest: float | None = None
    for number, scale in enumerate(wanted):
        progress(number, len(wanted) + 1, f"{scale:.4g} x the rates")
        if infeasible is not None:
            points.append(replace(infeasible, scale=scale, reasons=(f"{infeasible.scale:.4g} x is too much already",)))
            continue
        point, highest = _rate_point(asked, scale, solve)
        points.append(_checked_point(problem, point, check))
        infeasible = point if point.plan is None and point.finished else None
    progress(len(wanted), len(wanted) + 1, "the highest rate")
    if infeasible is None and points[-1].plan is not None:
        infeasible, highest = _beyond(asked, wanted[-1], solve)
    reached = max((point.scale for point in points if point.plan is not None), default=0.0)
    if asked.is_for_ways:  # what such a solution states of rates is of other plans
        infeasible, highest = _bisected(asked, reached, infeasible, solve) if reached else (infeasible, None)
    if highest is not None and reached >= highest * (1 - 2 * COST_TOLERANCE):
        highest = reached
    elif highest is not None:
        point, _ = _rate_point(asked, highest, solve)
        highest = highest if point.plan is not None else None
        points = sorted([*points, _checked_point(problem, point, check)], key=lambda p: p.scale)
    progress(len(wanted) + 1, len(wanted) + 1, "done")
    ended = infeasible.reasons if infeasible is not None else ("time ended before the highest rate was found",)
    return CostRate(tuple(points), highest, ended)


def _targets_by_rate(problem: Problem) -> Slo:
    """The targets of plans by rate: budget and p99 are checked afterwards; of plans that mix variants, the budget."""
    slo = replace(problem.slo, budget_usd_per_h=None)
    return slo if problem.slo.mean_accuracy is not None else replace(slo, latency_p99_s=None)


def _checked_point(problem: Problem, point: RatePoint, check: Check) -> RatePoint:
    if point.plan is None:
        return point
    plan = replace(point.plan, slo=problem.slo)
    return replace(point, plan=plan, breaches=breaches_of(scaled(problem, point.scale), plan, check))


def _rate_point(problem: Problem, scale: float, solve: Solve) -> tuple[RatePoint, float | None]:
    """The point at `scale`, and the highest feasible scale if the solver stated it, else None."""
    try:
        solution = solve(scaled(problem, scale))
    except SolverError as error:
        return RatePoint(scale, None, 0.0, reasons=(str(error),), finished=False), None
    plan = plan_of(solution)
    if plan is not None:
        return RatePoint(scale, plan, bound_usd_per_h(plan)), None
    why = solution.infeasibility
    nearest = why.nearest_rate_scale if why is not None else None
    point = RatePoint(scale, None, float("inf"), reasons=why.reasons if why is not None else ())
    return point, None if nearest is None else scale * nearest


def _beyond(problem: Problem, scale: float, solve: Solve) -> tuple[RatePoint, float | None]:
    """An infeasible point above a feasible `scale`, and the highest feasible scale; None if it is unknown."""
    for _ in range(PROBES):
        scale *= GROWTH
        point, highest = _rate_point(problem, scale, solve)
        if point.plan is None:
            return point, highest
    return RatePoint(scale, None, 0.0, reasons=(f"even {scale:.4g} x the rates is feasible",), finished=False), None


def _bisected(
    problem: Problem, low: float, beyond: RatePoint | None, solve: Solve
) -> tuple[RatePoint | None, float | None]:
    """The lowest infeasible point known and the highest feasible scale, from a feasible one `low`; None if unknown."""
    if beyond is None or not beyond.finished:
        return beyond, None
    while beyond.scale > low * (1.0 + HIGHEST_PRECISION):
        point, _ = _rate_point(problem, math.sqrt(low * beyond.scale), solve)
        if not point.finished:
            return point, None
        low, beyond = (low, point) if point.plan is None else (point.scale, beyond)
    return replace(beyond, reasons=(f"{beyond.scale:.4g} x the rates has no plan", *beyond.reasons)), low
