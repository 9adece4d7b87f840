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

from jellybean.documents import (
    AnyProject,
    Project,
    Settings,
    accuracy_target,
    budget,
    build_problem,
    everyone_served,
    latency_target,
    objective,
    scaled_rates,
    with_settings,
    workflows_named,
)
from jellybean.errors import InputError
from jellybean.frontier.mixed import TimedSolver
from jellybean.planning.deadline.after_losses import plans_after_losses
from jellybean.planning.deadline.predicted_latency import predicted_p99
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import plan_project
from jellybean.planning.searched_objectives import PRECISION, TINY_S, Bisection, Outcome
from jellybean_solver import (
    MovedTargets,
    Objective,
    OutOfTimeError,
    Plan,
    Slo,
    SolverError,
    cost_accuracy,
    cost_mean_accuracy,
    limited,
)

LIMIT_S = 60.0  # of a curve: as long as people wait for a picture
LEVELS = 8  # solves for a curve's accuracies, of most projects
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


ORDER = (Figure.ACCURACY, Figure.RATE, Figure.LATENCY, Figure.COST)  # of two, the first is fixed along the curve

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class PairPoint:
    """The plan at one value of the fixed figure, or None with `reasons`. `options`: `--set` options that make it.

    Figures: USD per hour, percent, p99 latency in seconds, requests per second of the first source; of several
    workflows the lowest accuracy and the largest latency of those that the curve is of. `finished`: False if time ended
    before it was known whether there is a plan.
    """

    fixed: float
    plan: Plan | None
    options: tuple[str, ...]
    figures: dict[Figure, float | None]
    reasons: tuple[str, ...] = ()
    finished: bool = True


@dataclass(frozen=True, slots=True)
class PairCurve:
    """`points`: by rising value of `x`; `y` is the best that a plan was found for there.

    `of`: whose figures are fixed, as the end of a label; empty for the only workflow. `notes`: why the curve may end
    too early, as sentences.
    """

    project: AnyProject
    x: Figure
    y: Figure
    points: tuple[PairPoint, ...]
    elapsed_s: float
    of: str = ""
    notes: tuple[str, ...] = ()

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
    workflows: Sequence[str] = (),
    progress: Progress = lambda done, total, label: None,
) -> PairCurve:
    """The curve, within about `limit_s` seconds; targets of the two figures are left out, the others hold.

    `workflows`: those of several along which the curve fixes their accuracy, latency or rate, by default all.
    """
    workflows = workflows_named(project, workflows)
    started, clock = time.perf_counter(), limited(limit_s, time.monotonic)
    search = _Search(project, x, y, workflows)
    values = list(search.values(points, limit_s / 4.0))
    found = []
    for number, value in enumerate(values):
        progress(number, len(values), f"{x} {search.text(value)}")
        left_s = clock.left() or 0.0
        found.append(search.point(value, left_s / (len(values) - number)))
    progress(len(values), len(values), "done")
    best = tuple(with_better_plans(found, x, y))
    return PairCurve(search.project, x, y, best, time.perf_counter() - started, search.moved.label, tuple(search.notes))


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


class _Search:
    """`project`: without targets of the two figures. `mixes`: the accuracy is the mean of all requests.

    `names`: workflows of which figures are fixed; none: all. `notes`: what is not known of the curve, as sentences.
    """

    def __init__(self, project: AnyProject, x: Figure, y: Figure, names: Sequence[str]) -> None:
        self.x, self.y, self.names = x, y, tuple(names)
        self.mixes = MovedTargets.of(build_problem(project), names).is_mean
        self.project = with_settings(project, self._free(project))
        self.problem = build_problem(self.project)
        self.moved, self.notes = MovedTargets.of(self.problem, names), list[str]()
        own = (source for source in self.problem.sources if self._is_moved(self.problem.workflow_of(source.name)))
        self.source = next(own)

    def _free(self, project: AnyProject) -> Settings:
        """Settings without targets of the two figures, and without workflows that may be left out."""
        free = {
            Figure.COST: budget(project, None),
            Figure.ACCURACY: accuracy_target(project, None, self.names, is_mean=self.mixes),
            Figure.LATENCY: latency_target(project, None, self.names if self.x is Figure.LATENCY else ()),
            Figure.RATE: (),
        }
        return (*objective(project, Objective.COST), *everyone_served(project), *free[self.x], *free[self.y])

    def _is_moved(self, workflow: str) -> bool:
        return not self.names or workflow in self.names

    def values(self, count: int, limit_s: float) -> Iterator[float]:
        """Values of the fixed figure, rising. `limit_s`: of each search for an end of the curve."""
        if self.x is Figure.ACCURACY:
            yield from self._means(count, limit_s) if self.mixes else self._accuracies(count, limit_s)
        elif self.x is Figure.RATE:
            top = self._highest_factor(limit_s) * self.source.rate_per_s
            yield from (top * (number + 1) / count for number in range(count))
        else:
            yield from self._latencies(count, limit_s)

    def _highest_factor(self, limit_s: float) -> float:
        """The highest factor on the rates that a plan was found for in time; a note if it may not be the highest."""
        clock = limited(limit_s, time.monotonic)

        def try_plan(asked: AnyProject) -> Outcome:
            try:
                found = plan_project(asked, time_limit_s=clock.left(), compare=False, weigh=False).plan is not None
            except OutOfTimeError:
                return Outcome(found=False, is_last=True)
            return Outcome(found, is_last=clock.left() == 0.0)

        search = Bisection(self.project, try_plan, lambda *_: None, self._scaled, str)
        is_known = search.run(PRECISION)
        if search.is_over and not is_known:
            self.notes.append("time ended before any plan was found: the curve ends at twice the stated one")
            return 2.0
        if search.is_over:
            reached = f"the curve ends at {search.low:.4g} times the stated one"
            self.notes.append(f"time ended the search for the highest rate: {reached}")
        return search.low

    def _scaled(self, factor: float) -> Settings:
        return scaled_rates(self.project, factor, names=self.names)

    def _accuracies(self, count: int, limit_s: float) -> Iterator[float]:
        """Accuracies of the cheapest plans without the other targets, evenly many."""
        solver = TimedSolver(limited(limit_s, time.monotonic), LEVELS)
        curve = cost_accuracy(self.problem, workflows=self.names, solve=solver)
        levels = [corner.accuracy for corner in curve.corners]
        if not levels:
            raise SolverError("; ".join(curve.ended))
        last = len(levels) - 1
        steps = max(1, min(count - 1, last))
        yield from dict.fromkeys(levels[round(step * last / steps)] for step in range(steps + 1))

    def _means(self, count: int, limit_s: float) -> Iterator[float]:
        """Mean accuracies from that of the cheapest plan to the highest, in equal steps."""
        asked = self.moved.asked(_at_any_latency, _at_any_latency)
        solver = TimedSolver(limited(limit_s, time.monotonic), 2)
        curve = cost_mean_accuracy(asked, points=2, workflows=self.names, solve=solver)
        if not curve.points:
            raise SolverError("; ".join(curve.ended))
        low, high = (floored(one.accuracy) for one in (curve.points[0], curve.points[-1]))
        yield from dict.fromkeys(floored(low + (high - low) * number / (count - 1)) for number in range(count))

    def _latencies(self, count: int, limit_s: float) -> Iterator[float]:
        """From the least p99 that a plan was found for to that of the cheapest plan, in equal ratios."""
        cheapest = self._planned((), limit_s).plan
        if cheapest is None:
            raise SolverError("no plan was found without a p99 target; `jellybean explain` says why")
        after = (left for _, left in plans_after_losses(self.problem, cheapest) if left is not None)
        slow = max(map(self._p99_s, (cheapest, *after)))
        others = () if not self.names else latency_target(self.project, None)  # theirs would be scaled alike
        out_of_reach = (*others, *latency_target(self.project, TINY_S, self.names))
        fast = min(slow, self._planned(out_of_reach, limit_s).nearest_p99_s or UNKNOWN_SHARE * slow)
        yield from dict.fromkeys(fast * (slow / fast) ** (number / (count - 1)) for number in range(count))

    def text(self, value: float) -> str:
        """A value of the fixed figure as in an option."""
        return str(self._settings(value)[-1]).partition("=")[2]

    def point(self, value: float, limit_s: float) -> PairPoint:
        """The best plan at a value."""
        settings = self._settings(value)
        asked = () if self.y is Figure.COST else objective(self.project, Objective(self.y.value))
        try:
            planned = self._planned((*settings, *asked), limit_s)
        except SolverError as error:
            return PairPoint(value, None, tuple(map(str, settings)), {}, (str(error),), finished=False)
        plan = planned.plan
        if plan is None:
            return PairPoint(value, None, tuple(map(str, settings)), {}, planned.reasons)
        p99_s = self._p99_s(plan)
        figures = {
            Figure.COST: plan.cost.total_usd_per_h + plan.late_usd_per_h,
            Figure.ACCURACY: self.moved.reached(plan),
            Figure.LATENCY: p99_s if math.isfinite(p99_s) else None,  # a queue without spare capacity
            Figure.RATE: next(one.rate_per_s for one in plan.sources if one.name == self.source.name),
        }
        return PairPoint(value, plan, plan.overrides, figures)

    def _settings(self, value: float) -> Settings:
        if self.x is Figure.RATE:
            return self._scaled(value / self.source.rate_per_s)
        if self.x is Figure.ACCURACY:
            return accuracy_target(self.project, value, self.names, is_mean=self.mixes)
        return latency_target(self.project, value, self.names)

    def _planned(self, settings: Settings, limit_s: float) -> Planned:
        asked = with_settings(self.project, settings)
        return plan_project(asked, time_limit_s=max(LEAST_S, limit_s), compare=False)

    def _p99_s(self, plan: Plan) -> float:
        """The largest p99 latency of the workflows that the curve is of."""
        return max(one.p99_s for name, one in predicted_p99(plan).items() if self._is_moved(name))


def _at_any_latency(slo: Slo) -> Slo:
    return replace(slo, latency_p99_s=None)


def floored(mean: float) -> float:
    """A mean accuracy in few digits that is reached wherever the given one is."""
    return math.floor(mean / MEAN_STEP + ROUNDING) * MEAN_STEP
