"""Compute the curves of a project; the p99 latency of every plan is checked by simulation, as by `jellybean plan`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jellybean.documents import AnyProject, build_problem, workflows_named
from jellybean.errors import JellyBeanError
from jellybean.folders import write_output
from jellybean.frontier.mixed import LIMIT_S, mixed_curves
from jellybean.planning.deadline.after_losses import breach_after_loss
from jellybean.planning.deadline.predicted_latency import check_latency, latency_targets
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean.planning.plan_file import PLAN_FILE, load_plan
from jellybean.planning.project_plan import QUICK_S, weighed
from jellybean_solver import (
    ACCURACY_TOLERANCE,
    DEFAULT_GAP,
    Clock,
    Corner,
    CostAccuracy,
    CostRate,
    MixedCurve,
    MixedPoint,
    MovedTargets,
    OutOfTimeError,
    Plan,
    Problem,
    Progress,
    Slo,
    Solution,
    SolveOptions,
    cost_accuracy,
    cost_rate,
    evaluate,
    has_many_workflows,
    limited,
    limited_work,
    quick_solution,
    solve_with,
    to_document,
    work_limit,
)

# Of the time limit: for the plans of a curve (the rest is for their p99 latencies), and of what is left of that for
# each plan. Less than so many seconds are no search, and end the curve.
CURVE_PART, CURVE_PART_BESIDE_RATES, SOLVE_PART, LEAST_SOLVE_S = 0.7, 0.4, 0.4, 0.05


COUNTED = "costs count the penalties of p99 latencies above soft targets"
NOT_COUNTED = "the curve of mean accuracies counts no penalties of p99 latencies: `plan` weighs them at one accuracy"


@dataclass(frozen=True, slots=True)
class Current:
    """The plan in DIR/plan.json, evaluated with the current documents.

    `dearer_usd_per_h`: its cost minus that of the curve at the same accuracy; None if the curve has no such point.
    """

    accuracy: float
    cost_usd_per_h: float
    dearer_usd_per_h: float | None


@dataclass(frozen=True, slots=True)
class Frontier:
    """The curves of a project: cost over accuracy, and cost over request rate if it was asked for.

    `notes`: why the current plan is not shown, if so. `elapsed_s` includes the simulations. If plans may mix variants,
    `mixed` is their curve, and `accuracy` that of plans with one selection for all requests, to compare with; `wanted`
    is then the mean accuracy of the plan that `jellybean plan` chooses, None if it finds none.
    """

    moved: MovedTargets
    accuracy: CostAccuracy
    rates: CostRate | None
    current: Current | None
    notes: tuple[str, ...]
    elapsed_s: float
    mixed: MixedCurve | None = None
    wanted: float | None = None

    @property
    def problem(self) -> Problem:
        """The problem as it is stated."""
        return self.moved.problem

    @property
    def targets(self) -> Set[float | None]:
        """The stated accuracy targets of what is moved: several ones if workflows are moved that have unlike ones."""
        return {slo.accuracy if self.mixed is None else slo.mean_accuracy for slo in self.moved.slos}

    @property
    def target(self) -> float | None:
        """The stated accuracy target of what is moved; None without one, or with several."""
        return next(iter(self.targets)) if len(self.targets) == 1 else None

    @property
    def is_soft(self) -> bool:
        """True if a target of what is moved is soft."""
        return any(slo.penalty_usd_per_h is not None for slo in self.moved.slos)

    @property
    def of(self) -> str:
        """Whose accuracy is moved, as the end of a label."""
        return self.moved.label

    @property
    def points(self) -> Sequence[Corner | MixedPoint]:
        """The points of cost over accuracy, by rising accuracy."""
        return self.accuracy.corners if self.mixed is None else self.mixed.points

    @property
    def ended(self) -> tuple[str, ...]:
        """Why the curve of cost over accuracy ends, or has no point, as sentences."""
        return self.accuracy.ended if self.mixed is None else self.mixed.ended

    @property
    def cheapest(self) -> Corner | MixedPoint | None:
        """The cheapest point that meets the accuracy target, even if it misses other targets; None if there is none.

        Of mixtures the one with the mean accuracy of the plan that `jellybean plan` chooses.
        """
        if self.mixed is not None:
            return None if self.wanted is None else self.mixed.at_least(self.wanted)
        target = self.target
        if len(self.targets) > 1:
            return None
        return self.accuracy.at_least(target) if target is not None else next(iter(self.points), None)

    @property
    def chosen(self) -> Corner | MixedPoint | None:
        """The point that `jellybean plan` would choose; None if the cheapest point misses a target."""
        return None if self.cheapest is None or self.cheapest.breaches else self.cheapest


def find_frontier(
    project: AnyProject,
    *,
    rates: Callable[[Problem], Sequence[float]] | None = None,
    step: float = ACCURACY_TOLERANCE,
    points: int | None = None,
    workflows: Sequence[str] = (),
    progress: Progress = lambda done, total, label: None,
) -> Frontier:
    """Compute the cost-accuracy curve and, if `rates` gives factors on the rates, the cost-rate curve.

    `step` and `workflows` as in `cost_accuracy`. If plans may mix variants, the accuracy is the mean, and `points` are
    solved for. The time limit of the work ends the curves where they are; SolverError if no plan is found in time.
    """
    workflows = workflows_named(project, workflows)
    problem = build_problem(project)
    scales = rates(problem) if rates is not None else ()
    started = time.perf_counter()
    moved = MovedTargets.of(problem, workflows)
    found, notes = _evaluated(project.directory, moved)
    if soft_targets(problem):
        notes = (*notes, NOT_COUNTED if moved.is_mean else COUNTED)

    limit = work_limit()
    if problem.workflows and limit.left() is None:  # their last proofs may take hours
        limit = limited(LIMIT_S, time.monotonic)

    def check(plan: Plan) -> str | None:
        if limit.left() == 0.0 and latency_targets(plan):
            return "time ended before its p99 latency was simulated"
        return check_latency(plan) or breach_after_loss(problem, plan)

    if moved.is_mean:
        curves = mixed_curves(
            problem, scales=scales, points=points, step=step, workflows=workflows, limit_s=limit.left(),
            current_accuracy=None if found is None else found[0], check=check, progress=progress,
        )  # fmt: skip
        elapsed_s = time.perf_counter() - started
        current = _current(found, curves.mixed)
        return Frontier(
            moved, curves.single, curves.rates, current, notes, elapsed_s, mixed=curves.mixed, wanted=curves.wanted
        )
    solver = _Solver(limit, None if problem.is_for_ways or has_many_workflows(problem) else DEFAULT_GAP)
    first = solver.within(CURVE_PART_BESIDE_RATES if scales else CURVE_PART)
    accuracy = cost_accuracy(problem, step=step, workflows=workflows, solve=first, check=check, progress=progress)
    by_rate = None
    if scales:
        by_rate = cost_rate(problem, scales, solve=solver.within(CURVE_PART), check=check, progress=progress)
    elapsed_s = time.perf_counter() - started
    return Frontier(moved, accuracy, by_rate, _current(found, accuracy), notes, elapsed_s)


class _Solver:
    """Solves the problems of a curve within the time limit of the work."""

    def __init__(self, limit: Clock, gap: float | None) -> None:
        self.limit, self.gap, self.has_solved = limit, gap, False

    def within(self, part: float) -> Callable[[Problem], Solution]:
        """A function that solves in a part of the time that is left now."""
        return partial(self._solve, self.limit.share(part))

    def _solve(self, clock: Clock, problem: Problem) -> Solution:
        left_s = clock.share(SOLVE_PART).left()
        if left_s is not None and left_s < LEAST_SOLVE_S:
            raise OutOfTimeError("the time limit ended the search")
        try:
            with limited_work(left_s, time.monotonic):
                options = SolveOptions(self.gap, left_s, time.monotonic, explained=not problem.workflows)
                solution = solve_with(problem, options)
                if soft_targets(problem):
                    solution = weighed(problem, solution)
        except OutOfTimeError as error:  # the first point is then that of a simple rule
            if self.has_solved:
                raise
            patience = Clock(time.monotonic, time.monotonic() + QUICK_S)
            rule = quick_solution(problem, patience, error.bound)
            if rule is None:
                raise
            solution = rule
        self.has_solved = True
        return solution


def save_plans(frontier: Frontier, folder: Path) -> tuple[Path, ...]:
    """Write the plan document of each point of the curves; returns the paths in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, plan in _plans(frontier):
        paths.append(folder / f"{name}.json")
        write_output(paths[-1], json.dumps(to_document(plan), indent=1) + "\n")
    return tuple(paths)


def accuracy_name(corner: Corner | MixedPoint) -> str:
    """File name, without suffix, of the plan of a point on the cost-accuracy curve."""
    return f"accuracy-{corner.accuracy:.10g}"


def rate_name(problem: Problem, scale: float) -> str:
    """File name, without suffix, of the plan of a point on the cost-rate curve."""
    return f"rate-{problem.sources[0].rate_per_s * scale:.10g}"


def _plans(frontier: Frontier) -> Iterator[tuple[str, Plan]]:
    for corner in frontier.points:
        yield accuracy_name(corner), corner.plan
    for point in frontier.rates.points if frontier.rates is not None else ():
        if point.plan is not None:
            yield rate_name(frontier.problem, point.scale), point.plan


def _evaluated(directory: Path, moved: MovedTargets) -> tuple[tuple[float, float] | None, tuple[str, ...]]:
    """The accuracy and cost of DIR/plan.json by the current documents; None without such a plan, with notes why."""
    if not (directory / PLAN_FILE).exists():
        return None, ()
    try:
        plan = load_plan(directory)
    except JellyBeanError as error:
        return None, (f"the current plan is not shown: {error}",)
    problem = moved.asked(lambda slo: Slo(), lambda slo: Slo())
    score = evaluate(problem, plan)
    accuracy = moved.reached(score.stated(plan))
    if score.violations or accuracy is None:
        reason = "it does not match these documents and options" if score.violations else "its accuracy is unknown"
        return None, (f"the plan in {PLAN_FILE} is not shown: {reason}",)
    return (accuracy, score.cost.total_usd_per_h + plan.late_usd_per_h), ()


def _current(found: tuple[float, float] | None, curve: CostAccuracy | MixedCurve) -> Current | None:
    """The current plan beside the curve. `found`: its accuracy and cost."""
    if found is None:
        return None
    accuracy, cost = found
    corner = curve.at_least(accuracy)
    return Current(accuracy, cost, None if corner is None else cost - corner.cost_usd_per_h)
