"""Curves of any two of cost, accuracy, p99 latency and rate, in a given time; each point is a plan with its options.

One of the two is fixed at values along the curve, as a target; the other one is what plans are then the best in
(`objective`). Between two values lies no more than was asked for: the curve is of plans that were found, and only a
point whose other figure is the cost has a proof of its own. If plans may mix variants, the accuracy is the mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from jellybean.documents import AnyProject, Project, build_forms, build_problem, load_any_project
from jellybean.errors import InputError
from jellybean.frontier.mixed import TimedSolver
from jellybean.planning.deadline.after_losses import plans_after_losses
from jellybean.planning.deadline.predicted_latency import predicted_p99
from jellybean.planning.deadline.soft_targets import refuse_soft_latency
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import plan_project
from jellybean.planning.searched_objectives import DIGITS, TINY_S, by_prefix, scaled_rate_options
from jellybean.quantities import DURATION, RATE, format_quantity, rounded_up
from jellybean_solver import (
    DEFAULT_GAP,
    OutOfTimeError,
    Plan,
    SolveOptions,
    SolverError,
    cost_accuracy,
    cost_mean_accuracy,
    limited,
    solve_forms,
)

LIMIT_S = 60.0  # of a curve: as long as people wait for a picture
POINTS = 7  # of a curve: with more, each search has less of the time
UNKNOWN_SHARE = 0.25  # of the cheapest plan's p99: where a curve starts if no least one is known, as with losses
MEAN_STEP = 1e-4  # percent points: means are multiples of it
ROUNDING = 1e-6  # of a step: means that lack less of a multiple are rounded up to it
LEAST_S = 1.0  # for one point, in which small problems are solved


class Figure(StrEnum):
    """What a curve is about."""

    COST = "cost"
    ACCURACY = "accuracy"
    LATENCY = "latency"
    RATE = "rate"


OF_SEVERAL = {Figure.RATE, Figure.COST}  # workflows: their accuracies and latencies are several
ORDER = (Figure.ACCURACY, Figure.RATE, Figure.LATENCY, Figure.COST)  # of two, the first is fixed along the curve
TARGETS = {Figure.COST: "slo.budget", Figure.ACCURACY: "slo.accuracy", Figure.LATENCY: "slo.latency_p99"}

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class PairPoint:
    """The plan at one value of the fixed figure, or None with `reasons`. `options`: `--set` options that make it.

    Figures: USD per hour, percent, p99 latency in seconds, requests per second of the first source. `finished`: False
    if time ended before it was known whether there is a plan.
    """

    fixed: float
    plan: Plan | None
    options: tuple[str, ...]
    figures: dict[Figure, float | None]
    reasons: tuple[str, ...] = ()
    finished: bool = True


@dataclass(frozen=True, slots=True)
class PairCurve:
    """`points`: by rising value of `x`; `y` is the best that a plan was found for there."""

    project: AnyProject
    x: Figure
    y: Figure
    points: tuple[PairPoint, ...]
    elapsed_s: float

    @property
    def name(self) -> str:
        """Name of the project."""
        return self.project.workflow.name if isinstance(self.project, Project) else self.project.name


def ordered(one: Figure, other: Figure) -> tuple[Figure, Figure]:
    """The figure that has values along the curve, and the one that plans are the best in. InputError for one twice."""
    if one is other:
        raise InputError(f"a curve is of two of {', '.join(Figure)}, not of {one} twice")
    return (one, other) if ORDER.index(one) < ORDER.index(other) else (other, one)


def pair_curve(
    project: AnyProject,
    x: Figure,
    y: Figure,
    *,
    limit_s: float = LIMIT_S,
    points: int = POINTS,
    progress: Progress = lambda done, total, label: None,
) -> PairCurve:
    """The curve, within about `limit_s` seconds; targets of the two figures are left out, the others hold.

    InputError for figures that are not of several workflows together.
    """
    if not isinstance(project, Project) and {x, y} != OF_SEVERAL:
        raise InputError(
            "of several workflows on one fleet, `jellybean frontier` knows the curve of rate and cost: --of rate,cost; "
            f"accuracy and latency are of one of them: {project.directory}/workflows/{next(iter(project.workflows))}"
        )
    refuse_soft_latency(project, "frontier")
    started, clock = time.perf_counter(), limited(limit_s, time.monotonic)
    search = _Search(project, x, y)
    values = list(search.values(points, limit_s / 4.0))
    found = []
    for number, value in enumerate(values):
        progress(number, len(values), f"{x} {search.text(value)}")
        left_s = clock.left() or 0.0
        found.append(search.point(value, left_s / (len(values) - number)))
    progress(len(values), len(values), "done")
    best = tuple(with_better_plans(found, x, y))
    return PairCurve(search.project, x, y, best, time.perf_counter() - started)


def with_better_plans(points: Sequence[PairPoint], x: Figure, y: Figure) -> list[PairPoint]:
    """The points by rising value, each with the best plan found for its value or one that is harder to reach.

    A plan for a higher accuracy, or for a lower latency, does for the others too; searches may miss it in their time.
    """
    if x not in (Figure.ACCURACY, Figure.LATENCY):
        return list(points)
    is_rising, best = x is Figure.LATENCY, None
    kept: list[PairPoint] = []
    for point in points if is_rising else reversed(points):
        if best is None or _is_better(point, best, y):
            best = point if point.plan is not None else None
        kept.append(point if best is None else replace(best, fixed=point.fixed))
    return kept if is_rising else kept[::-1]


def _is_better(point: PairPoint, best: PairPoint, y: Figure) -> bool:
    """True if a point has a plan that is as good in a figure as the best one, or better."""
    one, other = point.figures.get(y), best.figures.get(y)
    if one is None or other is None:
        return one is not None
    return one >= other if y is Figure.RATE else one <= other


def _without_targets(project: AnyProject, least: str, *figures: Figure) -> AnyProject:
    """The project without targets of the figures. `least`: the option of the least accuracy that any request gets."""
    options = [f"{prefix}objective=cost" for prefix in by_prefix(project)]
    if isinstance(project, Project):
        options += [f"{TARGETS[figure]}=null" for figure in figures if figure in TARGETS]
    elif Figure.COST in figures:
        options.append("limits.budget=null")
    options += [least] if least and Figure.ACCURACY in figures else []
    return _with(project, options)


def _with(project: AnyProject, options: Sequence[str]) -> AnyProject:
    """The project with further `--set` options."""
    is_stale = any(one.accept_stale for one in by_prefix(project).values())
    return load_any_project(project.directory, (*project.overrides, *options), accept_stale=is_stale)


class _Search:
    """`project`: without targets of the two figures. `mixes`: the accuracy is the mean of all requests."""

    def __init__(self, project: AnyProject, x: Figure, y: Figure) -> None:
        self.x, self.y, stated = x, y, build_problem(project)
        self.mixes, least = stated.may_mix, stated.slo.accuracy
        self.least = f", least: {least:.10g}" if self.mixes and least is not None else ""
        kept = f"slo.accuracy={least:.10g}" if self.least else ""
        self.project = _without_targets(project, kept, x, y)
        self.problem, self.forms = build_problem(self.project), build_forms(self.project)
        self.first_per_s = self.problem.sources[0].rate_per_s

    def values(self, count: int, limit_s: float) -> Iterator[float]:
        """Values of the fixed figure, rising. `limit_s`: of each search for an end of the curve."""
        if self.x is Figure.ACCURACY:
            yield from self._means(count, limit_s) if self.mixes else self._accuracies(count, limit_s)
        elif self.x is Figure.RATE:
            highest = self._highest_rates(limit_s)
            top = 2.0 * self.first_per_s if highest is None else highest.sources[0].rate_per_s
            yield from (top * (number + 1) / count for number in range(count))
        else:
            yield from self._latencies(count, limit_s)

    def _highest_rates(self, limit_s: float) -> Plan | None:
        try:
            return self._planned([f"{prefix}objective=rate" for prefix in by_prefix(self.project)], limit_s).plan
        except OutOfTimeError:
            return None

    def _accuracies(self, count: int, limit_s: float) -> Iterator[float]:
        """Accuracies of the cheapest plans without the other targets, evenly many."""
        options = SolveOptions(DEFAULT_GAP, limit_s, time.monotonic)
        curve = cost_accuracy(self.problem, solve=lambda asked: solve_forms(asked, self.forms, options))
        levels = [corner.accuracy for corner in curve.corners]
        if not levels:
            raise SolverError("; ".join(curve.ended))
        last = len(levels) - 1
        steps = max(1, min(count - 1, last))
        yield from dict.fromkeys(levels[round(step * last / steps)] for step in range(steps + 1))

    def _means(self, count: int, limit_s: float) -> Iterator[float]:
        """Mean accuracies from that of the cheapest plan to the highest, in equal steps."""
        asked = replace(self.problem, slo=replace(self.problem.slo, latency_p99_s=None))
        solver = TimedSolver(self.forms, limited(limit_s, time.monotonic), 2)
        curve = cost_mean_accuracy(asked, points=2, solve=solver)
        if not curve.points:
            raise SolverError("; ".join(curve.ended))
        low, high = (floored(one.accuracy) for one in (curve.points[0], curve.points[-1]))
        yield from dict.fromkeys(floored(low + (high - low) * number / (count - 1)) for number in range(count))

    def _latencies(self, count: int, limit_s: float) -> Iterator[float]:
        """From the least p99 that a plan was found for to that of the cheapest plan, in equal ratios."""
        cheapest = self._planned((), limit_s).plan
        if cheapest is None:
            raise SolverError("no plan was found without a p99 target; `jellybean explain` says why")
        after = (left for _, left in plans_after_losses(self.problem, self.forms, cheapest) if left is not None)
        slow = max(map(_p99_s, (cheapest, *after)))
        out_of_reach = f"{TARGETS[Figure.LATENCY]}={format_quantity(DURATION, TINY_S)}"
        fast = min(slow, self._planned((out_of_reach,), limit_s).nearest_p99_s or UNKNOWN_SHARE * slow)
        yield from dict.fromkeys(fast * (slow / fast) ** (number / (count - 1)) for number in range(count))

    def text(self, value: float) -> str:
        """A value of the fixed figure as in an option."""
        if self.x is Figure.ACCURACY:
            return f"{value:.10g}"
        if self.x is Figure.LATENCY:
            return format_quantity(DURATION, rounded_up(DURATION, value))
        return format_quantity(RATE, value, DIGITS)

    def point(self, value: float, limit_s: float) -> PairPoint:
        """The best plan at a value."""
        options = self._options(value)
        try:
            planned = self._planned((*options, *self._objective()), limit_s)
        except SolverError as error:
            return PairPoint(value, None, options, {}, (str(error),), finished=False)
        plan = planned.plan
        if plan is None:
            return PairPoint(value, None, options, {}, planned.reasons)
        figures = {
            Figure.COST: plan.cost.total_usd_per_h,
            Figure.ACCURACY: plan.accuracy,
            Figure.LATENCY: p99_s if math.isfinite(p99_s := _p99_s(plan)) else None,  # a queue without spare capacity
            Figure.RATE: plan.sources[0].rate_per_s,
        }
        return PairPoint(value, plan, plan.overrides, figures)

    def _options(self, value: float) -> tuple[str, ...]:
        if self.x is Figure.RATE:
            return scaled_rate_options(self.project, value / self.first_per_s)
        if self.x is Figure.ACCURACY and self.mixes:
            return (f"{TARGETS[self.x]}={{mean: {self.text(value)}{self.least}}}",)
        return (f"{TARGETS[self.x]}={self.text(value)}",)

    def _objective(self) -> Sequence[str]:
        return () if self.y is Figure.COST else (f"objective={self.y}",)

    def _planned(self, options: Sequence[str], limit_s: float) -> Planned:
        return plan_project(_with(self.project, options), time_limit_s=max(LEAST_S, limit_s), compare=False)


def floored(mean: float) -> float:
    """A mean accuracy in few digits that is reached wherever the given one is."""
    return math.floor(mean / MEAN_STEP + ROUNDING) * MEAN_STEP


def _p99_s(plan: Plan) -> float:
    return max(one.p99_s for one in predicted_p99(plan).values())
