"""Curves of any two of cost, accuracy, p99 latency and rate, or of energy or carbon and cost, in a given time.

Each point is a plan with its options.

One of the two is fixed at values along the curve, as a target; the other one is what plans are then the best in
(`objective`). Between two values lies no more than was asked for: the curve is of plans that were found, and its gaps
are those of their costs. If plans may mix variants, the accuracy is the mean.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jellybean.documents import (
    AnyProject,
    Settings,
    accuracy_target,
    budget,
    build_problem,
    everyone_served,
    latency_target,
    objective,
    resource_limit,
    scaled_rates,
    with_settings,
    workflows_named,
)
from jellybean.frontier.find import LIMIT_S, RESOURCES, Frontier, figures_of
from jellybean.frontier.timed_solver import LEAST_S, TimedSolver
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import plans_after_losses, predicted_p99
from jellybean.planning.project_plan import plan_project
from jellybean.planning.searched_objectives import PRECISION, TINY_S, ObjectiveSearch, largest_factor
from jellybean.planning.simulated_deadline import no_progress
from jellybean_solver import (
    Curve,
    CurvePoint,
    Figure,
    MovedTargets,
    Objective,
    Plan,
    Progress,
    SolverError,
    at_any_latency,
    bound_usd_per_h,
    cost_accuracy,
    cost_mean_accuracy,
    limited,
)

POINTS = 7  # of a curve: with more, each search has less of the time
ENDS_SHARE = 0.25  # of the time, for each search for an end of the curve
UNKNOWN_SHARE = 0.25  # of the cheapest plan's p99: where a curve starts if no least one is known, as with losses
MEAN_STEP = 1e-4  # percent points: means are multiples of it
ROUNDING = 1e-6  # of a step: means that lack less of a multiple are rounded up to it


def pair_curve(
    project: AnyProject,
    one: Figure,
    other: Figure,
    *,
    limit_s: float = LIMIT_S,
    points: int = POINTS,
    workflows: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Frontier:
    """The curve of two figures, within about `limit_s` seconds; their targets are left out, the others hold.

    `workflows`: those of several along which the curve fixes their accuracy, latency or rate, by default all.
    """
    started, clock = time.perf_counter(), limited(limit_s, time.monotonic)
    stated = MovedTargets.of(build_problem(project), workflows_named(project, workflows))
    x, y = sorted((one, other), key=list(Figure).index)
    search = _Search(project, x, y, stated)
    values = list(dict.fromkeys(search.values(points, ENDS_SHARE * limit_s)))
    found = []
    for number, value in enumerate(values):
        progress(number, len(values), f"{x} {value:.4g}")
        found.append(search.point(value, (clock.left() or 0.0) / (len(values) - number)))
    progress(len(values), len(values), "done")
    every = sorted([*found, *search.known], key=lambda point: (point.x, point.bound_usd_per_h))
    best = {point.x: point for point in with_better_plans(every, x, y)}
    finished = all(point.finished for point in best.values())
    curve = Curve(x, tuple(best.values()), finished, (), y=y)
    return Frontier(stated, curve, notes=tuple(search.notes), elapsed_s=time.perf_counter() - started)


def with_better_plans(points: Sequence[CurvePoint], x: Figure, y: Figure) -> list[CurvePoint]:
    """The points by rising value, each with the best plan found for its value or one that is harder to reach.

    A plan for a higher accuracy, or for a lower latency or use, does for the others too; searches may miss it in their
    time. Its cost is compared with the bounds of the point's own search and of all for values that are easier to reach,
    which are bounds for more plans; not with that of its own search, which is for fewer.
    """
    if x is Figure.RATE:
        return list(points)
    order, sign = -1 if x is Figure.ACCURACY else 1, -1.0 if y is Figure.RATE else 1.0
    if y is Figure.COST:
        points = _with_shared_bounds(points[::-order])[::-order]
    best, least, kept = points[0], math.inf, list[CurvePoint]()
    for point in points[::order]:
        rank = sign * point.figures.get(y, sign * math.inf)
        if rank <= least:
            least, best = rank, point
        kept.append(replace(best, x=point.x, bound_usd_per_h=point.bound_usd_per_h))
    return kept[::order]


def _with_shared_bounds(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points, the easiest to reach first, each with the highest bound on its cost of all up to it."""
    bounds = itertools.accumulate((point.bound_usd_per_h for point in points), max)
    return [replace(point, bound_usd_per_h=bound) for point, bound in zip(points, bounds, strict=True)]


class _Search:
    """`project`: without targets of the two figures. `mixes`: the accuracy is the mean of all requests.

    `names`: workflows of which figures are fixed. `notes`: what is not known of the curve, as sentences.
    `known`: plans at the ends of the curve that the searches for these ends have found.
    """

    def __init__(self, project: AnyProject, x: Figure, y: Figure, stated: MovedTargets) -> None:
        self.x, self.y, self.mixes = x, y, stated.is_mean
        self.names = () if stated.is_all else stated.workflows
        self.project = with_settings(project, self._free(project))
        self.moved, self.notes = MovedTargets.of(build_problem(self.project), self.names), list[str]()
        self.known: list[CurvePoint] = []

    def _free(self, project: AnyProject) -> Settings:
        """Settings without targets of the two figures, and without workflows that may be left out."""
        free = {
            Figure.COST: budget(project, None),
            Figure.ACCURACY: accuracy_target(project, None, self.names, is_mean=self.mixes),
            Figure.LATENCY: latency_target(project, None, self.names if self.x is Figure.LATENCY else ()),
            Figure.RATE: (),
            **{figure: resource_limit(figure, None) for figure in RESOURCES},
        }
        return (*objective(project, Objective.COST), *everyone_served(project), *free[self.x], *free[self.y])

    def values(self, count: int, limit_s: float) -> Iterable[float]:
        """Values of the fixed figure, rising. `limit_s`: of each search for an end of the curve."""
        if self.x is Figure.RATE:
            top = self._highest_factor(limit_s) * self.moved.sources[0].rate_per_s
            return (top * (number + 1) / count for number in range(count))
        if self.x is Figure.LATENCY:
            fast, slow = self._latencies(limit_s)
            return (*(fast * (slow / fast) ** (number / (count - 1)) for number in range(count - 1)), slow)
        if self.x in RESOURCES:
            low, high = self._uses(limit_s)
            return (*(low + (high - low) * number / (count - 1) for number in range(count - 1)), high)
        known = self._accuracies(limit_s)
        last = len(known) - 1
        if self.mixes:
            low, high = floored(known[0]), floored(known[-1])
            return (floored(low + (high - low) * number / (count - 1)) for number in range(count))
        steps = min(count - 1, last) or 1
        return (known[round(step * last / steps)] for step in range(steps + 1))

    def _accuracies(self, limit_s: float) -> Sequence[float]:
        """Accuracies of cheapest plans without the other targets: of all, or of mixtures the lowest and the highest."""
        clock = limited(limit_s, time.monotonic)
        if self.mixes:
            asked = self.moved.asked(at_any_latency, at_any_latency)
            curve = cost_mean_accuracy(asked, points=2, workflows=self.names, solve=TimedSolver(clock, 2))
        else:
            curve = cost_accuracy(self.moved.problem, workflows=self.names, solve=TimedSolver(clock))
        if not curve.points:
            raise SolverError("; ".join(curve.ended))
        return [point.x for point in curve.points]

    def _latencies(self, limit_s: float) -> tuple[float, float]:
        """The least p99 that a plan was found for, and that of the cheapest plan, in seconds."""
        cheapest = self._planned((), limit_s).plan
        if cheapest is None:
            raise SolverError("no plan was found without a p99 target; `jellybean explain` says why")
        after = (left for _, left in plans_after_losses(self.moved.problem, cheapest) if left is not None)
        slow = max(map(self._p99_s, (cheapest, *after)))
        others = () if not self.names else latency_target(self.project, None)  # theirs would be scaled alike
        out_of_reach = (*others, *latency_target(self.project, TINY_S, self.names))
        nearest = self._planned(out_of_reach, limit_s)
        fast = nearest.nearest_p99_s
        if not math.isfinite(slow):  # a queue without spare capacity
            slow = math.inf if fast is None else fast / UNKNOWN_SHARE
        if not math.isfinite(slow):
            raise SolverError("no plan was found whose queues do not grow; --time-limit allows a longer search")
        fast = min(slow, fast or UNKNOWN_SHARE * slow)
        ends = ((nearest.fastest, fast), (cheapest, slow))
        self.known = [self._point_of(plan, at) for plan, at in ends if plan is not None and self._p99_s(plan) <= at]
        return fast, slow

    def _uses(self, limit_s: float) -> tuple[float, float]:
        """The least use of a resource that a plan was found for, and that of the cheapest plan."""
        frugal = self._planned(objective(self.project, Objective(self.x.value)), limit_s).plan
        cheapest = self._planned((), limit_s).plan
        if frugal is None or cheapest is None:
            raise SolverError(f"no plan was found without a limit of {self.x}; `jellybean explain` says why")
        if self.x not in cheapest.uses:
            raise SolverError(f"no plan uses {self.x}: no worker or link of infrastructure.yaml states what it uses")
        high = cheapest.uses[self.x]
        low = min(frugal.uses[self.x], high)
        first, last = self._point_of(frugal, low), self._point_of(cheapest, high)
        self.known = [replace(first, bound_usd_per_h=0.0), last]  # the first one's bound is of its use
        return low, high

    def _highest_factor(self, limit_s: float) -> float:
        """The highest factor on the rates that a plan was found for in time; a note if it may not be the highest."""

        def plan_one(asked: AnyProject, limit_s: float | None, is_last: bool) -> Planned:
            return plan_project(asked, time_limit_s=limit_s, compare=False, weigh=False)

        search = ObjectiveSearch(self.project, plan_one, limited(limit_s, time.monotonic), no_progress)
        found = largest_factor(lambda factor: search.holds(self._scaled(factor), ""), PRECISION)
        top = 2.0 if found is None else found[0]
        if search.is_over:
            ended = "time ended the search for the highest rate"
            self.notes.append(f"{ended}: the curve ends at {top:.4g} times the stated one")
        return top

    def _scaled(self, factor: float) -> Settings:
        return scaled_rates(self.project, factor, names=self.names)

    def point(self, value: float, limit_s: float) -> CurvePoint:
        """The best plan at a value."""
        settings = self._settings(value)
        asked = () if self.y is Figure.COST else objective(self.project, Objective(self.y.value))
        unplanned = CurvePoint(value, None, figures={self.x: value}, options=tuple(map(str, settings)))
        try:
            planned = self._planned((*settings, *asked), limit_s)
        except SolverError as error:
            return replace(unplanned, reasons=(str(error),), finished=False)
        plan = planned.plan
        if plan is None:
            return replace(unplanned, reasons=planned.reasons)
        return self._point_of(plan, value)

    def _point_of(self, plan: Plan, value: float) -> CurvePoint:
        """The point of a plan, with the options that make it, or those of the value."""
        figures, p99_s = figures_of(plan, self.moved), self._p99_s(plan)
        if math.isfinite(p99_s):  # else it has a queue without spare capacity
            figures[Figure.LATENCY] = p99_s
        return CurvePoint(
            value,
            plan,
            bound_usd_per_h(plan),
            figures=figures,
            options=plan.overrides or tuple(map(str, self._settings(value))),
        )

    def _settings(self, value: float) -> Settings:
        if self.x is Figure.RATE:
            return self._scaled(value / self.moved.sources[0].rate_per_s)
        if self.x is Figure.ACCURACY:
            return accuracy_target(self.project, value, self.names, is_mean=self.mixes)
        if self.x in RESOURCES:
            return resource_limit(self.x, value)
        return latency_target(self.project, value, self.names)

    def _planned(self, settings: Settings, limit_s: float) -> Planned:
        asked = with_settings(self.project, settings)
        return plan_project(asked, time_limit_s=max(LEAST_S, limit_s), compare=False)

    def _p99_s(self, plan: Plan) -> float:
        """The largest p99 latency of the workflows that the curve is of."""
        return max(one.p99_s for name, one in predicted_p99(plan).items() if not self.names or name in self.names)


def floored(mean: float) -> float:
    """A mean accuracy in few digits that is reached wherever the given one is."""
    return math.floor(mean / MEAN_STEP + ROUNDING) * MEAN_STEP
