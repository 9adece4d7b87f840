"""Compute the curves of a project; the p99 latency of every plan is checked by simulation, as by `jellybean plan`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jellybean.documents import AnyProject, build_problem, workflows_named
from jellybean.errors import JellyBeanError
from jellybean.frontier.timed_solver import TimedSolver
from jellybean.planning.plan_file import PlanFile
from jellybean.planning.predicted_latency import check_latency, latency_targets
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.soft_targets import as_hard, soft_targets
from jellybean_solver import (
    Curve,
    CurvePoint,
    Figure,
    MovedTargets,
    Objective,
    Plan,
    Progress,
    Slo,
    SolverError,
    cost_accuracy,
    cost_mean_accuracy,
    cost_rate,
    evaluate,
    limited,
    work_limit,
)

LIMIT_S = 60.0  # of all curves of mixtures, or of several workflows: as long as people wait for a picture
POINTS, TIMED_POINTS = 15, 7  # of a curve of mixtures, and of one with a p99 target, where each point takes a search
CURVE_SHARE, BESIDE_RATES_SHARE = 0.7, 0.4  # of the time, for cost over accuracy: alone, and beside cost over rate
RATE_SOLVES = 12  # beside one for each rate: those that find the highest one
STAIRS = 24  # steps at most of the curve of one selection, which is only there to be compared with

RESOURCES = (Figure.ENERGY, Figure.CARBON)
COUNTED = "costs count the penalties of p99 latencies above soft targets"
NOT_COUNTED = "the curve of mean accuracies counts no penalties of p99 latencies: `plan` weighs them at one accuracy"


@dataclass(frozen=True, slots=True)
class Current:
    """The plan in DIR/plan.json, evaluated with the current documents.

    `dearer_usd_per_h`: its cost minus that of the curve at the same accuracy; None if the curve has no such point.
    """

    accuracy: float
    cost_usd_per_h: float
    dearer_usd_per_h: float | None = None


@dataclass(frozen=True, slots=True)
class Frontier:
    """A curve of a project's plans, by default of cost over accuracy; `rates`: beside it cost over rate, if asked for.

    `moved`: the problem as it is stated, and the workflows whose figures are moved. `single`: beside a curve of plans
    that mix variants the one of plans with one selection for all requests. `wanted`: the least accuracy of the plan
    that `jellybean plan` chooses; None if it is not on the curve. `notes`: what is not shown or known, as sentences.
    """

    moved: MovedTargets
    curve: Curve
    rates: Curve | None = None
    single: Curve | None = None
    current: Current | None = None
    wanted: float | None = None
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0

    @property
    def curves(self) -> tuple[Curve, ...]:
        return (self.curve,) if self.rates is None else (self.curve, self.rates)

    @property
    def cheapest(self) -> CurvePoint | None:
        """The cheapest point that meets the accuracy target, even if it misses other targets; None if there is none."""
        return None if self.wanted is None else self.curve.at_least(self.wanted)

    @property
    def chosen(self) -> CurvePoint | None:
        """The point that `jellybean plan` would choose; None if the cheapest point misses a target."""
        return None if self.cheapest is None or self.cheapest.breaches else self.cheapest

    def stated(self, figure: Figure) -> float | None:
        """The documents' accuracy target, budget or rate of what is moved; None without one, or with several."""
        if figure is Figure.RATE:
            return self.moved.sources[0].rate_per_s
        if figure is Figure.COST:
            return self.moved.problem.slo.budget_usd_per_h
        if figure in RESOURCES:
            return self.moved.problem.most.get(figure)
        known = _accuracies(self.moved) if figure is Figure.ACCURACY else set()
        return known.pop() if len(known) == 1 else None


def find_frontier(
    project: AnyProject,
    *,
    rates: Callable[[float], Sequence[float]] | None = None,
    step: float = 0.0,
    points: int | None = None,
    workflows: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Frontier:
    """Compute the cost-accuracy curve and, if `rates` gives factors on the rates, the cost-rate curve.

    `rates` is told the rate of the first source that is moved. `step`, `workflows` as in `cost_accuracy`. If plans may
    mix variants, the accuracy is the mean, and `points` are solved for. The time limit of the work ends the curves
    where they are; SolverError if no plan is found in time.
    """
    started = time.perf_counter()
    moved = MovedTargets.of(build_problem(project), workflows_named(project, workflows))
    problem, names = moved.problem, moved.workflows
    scales = () if rates is None else rates(moved.sources[0].rate_per_s)
    current, notes = _current(project.directory, moved)
    if soft_targets(problem):
        notes = (*notes, NOT_COUNTED if moved.is_mean else COUNTED)
    limit = work_limit()
    if (moved.is_mean or problem.workflows) and limit.left() is None:  # their last proofs may take hours
        limit = limited(LIMIT_S, time.monotonic)

    def check(plan: Plan) -> str | None:
        if limit.left() == 0.0 and latency_targets(plan):
            return "time ended before its p99 latency was simulated"
        return check_latency(plan, problem)

    count = points or (POINTS if problem.deadline_s is None else TIMED_POINTS)
    clock = limit.share(BESIDE_RATES_SHARE if scales else CURVE_SHARE)
    solver = TimedSolver(clock, 2 * count * moved.is_mean)
    wanted, search = _wanted(moved, solver), cost_accuracy
    if moved.is_mean:
        means = [mean for mean in (wanted, None if current is None else current.accuracy) if mean is not None]
        search = partial(cost_mean_accuracy, accuracies=means, points=count)
    curve = search(problem, step=step, workflows=names, solve=solver, check=check, progress=progress)
    by_rate = None
    if scales:
        solver = TimedSolver(limit.share(CURVE_SHARE), len(scales) + RATE_SOLVES)
        by_rate = cost_rate(problem, scales, workflows=names, solve=solver, check=check, progress=progress)
    single = _single_selection(moved, curve, TimedSolver(limit), check) if moved.is_mean else None
    if current is not None and (point := curve.at_least(current.accuracy)) is not None:
        current = replace(current, dearer_usd_per_h=current.cost_usd_per_h - point.cost_usd_per_h)
    by_rate, single = (other and with_figures(other, moved) for other in (by_rate, single))
    return Frontier(
        moved, with_figures(curve, moved), by_rate, single, current, wanted, notes, time.perf_counter() - started
    )


def with_figures(curve: Curve, moved: MovedTargets) -> Curve:
    """The curve, whose points have the figures of their plans, and without one the rate."""

    rate_per_s = moved.sources[0].rate_per_s
    points = (
        replace(one, figures=figures_of(one.plan, moved) if one.plan else {Figure.RATE: one.x * rate_per_s})
        for one in curve.points
    )
    return replace(curve, points=tuple(points))


def figures_of(plan: Plan, moved: MovedTargets) -> dict[Figure, float]:
    """The figures of a plan that are known without simulating it."""
    source = moved.sources[0].name
    figures = {
        Figure.COST: plan.cost.total_usd_per_h + plan.late_usd_per_h,
        Figure.ACCURACY: moved.reached(plan),
        Figure.RATE: next(one.rate_per_s for one in plan.sources if one.name == source),
        **{figure: plan.uses.get(figure) for figure in RESOURCES},
    }
    return {figure: value for figure, value in figures.items() if value is not None}


def _accuracies(moved: MovedTargets) -> set[float | None]:
    """The stated accuracy targets of what is moved."""
    return {slo.mean_accuracy if moved.is_mean else slo.accuracy for slo in moved.slos}


def _wanted(moved: MovedTargets, solve: TimedSolver) -> float | None:
    """The accuracy of the plan that `jellybean plan` chooses: the target, or what a soft one or a budget gives.

    Of several workflows it is known without a search only if one is moved, or all have one target.
    """
    stated, is_soft = _accuracies(moved), any(slo.penalty_usd_per_h is not None for slo in moved.slos)
    if moved.problem.objective is Objective.COST and not is_soft and len(stated) == 1:
        return stated.pop() or 0.0
    if not moved.is_mean:
        return None
    try:
        plan = solve(moved.problem).plan
    except SolverError:
        return None
    return None if plan is None else moved.reached(plan)


def _single_selection(
    moved: MovedTargets, mixed: Curve, solve: TimedSolver, check: Callable[[Plan], str | None]
) -> Curve:
    """The curve of plans with one selection for all requests that meet the p99 target, in the time that is left."""
    if not mixed.points:
        return mixed
    asked = as_hard(moved.asked(lambda slo: replace(slo, mean_accuracy=None, penalty_usd_per_h=None)), {})
    least = max((slo.accuracy for slo in moved.slos if slo.accuracy is not None), default=None)
    step = (mixed.points[-1].x - mixed.points[0].x) / STAIRS
    try:
        curve = cost_accuracy(asked, step=step, least=least, workflows=moved.workflows, solve=solve, check=check)
    except SolverError as error:
        return replace(mixed, points=(), finished=False, ended=(str(error),))
    return replace(curve, points=tuple(point for point in curve.points if not point.breaches))


def _current(directory: Path, moved: MovedTargets) -> tuple[Current | None, tuple[str, ...]]:
    """DIR/plan.json by the current documents; None without such a plan, with notes why."""
    if not (file := PlanFile(directory)).path.exists():
        return None, ()
    try:
        plan = file.load().plan
    except JellyBeanError as error:
        return None, (f"the current plan is not shown: {error}",)
    score = evaluate(moved.asked(lambda slo: Slo(), lambda slo: Slo()), plan)
    accuracy = moved.reached(score.stated(plan))
    if score.violations or accuracy is None:
        reason = "it does not match these documents and options, or its accuracy is unknown"
        return None, (f"the current plan is not shown: {reason}",)
    return Current(accuracy, score.cost.total_usd_per_h + plan.late_usd_per_h), ()
