"""The curve of the least cost over the mean accuracy, for plans that mix variants: the box method.

A plan may have any mean accuracy in a range, so the curve has no corners to enumerate. Between two points the cost lies
in a box: at most that of the next point, whose plan is accurate enough, and at least the lower bound of the point
before. The largest box is divided by the cheapest plan for the accuracy in its middle (Hamacher, Pedersen, Ruzika:
Finding representative systems for discrete bicriterion optimization problems, 2007).

A p99 latency target is a matter of `solve`. The budget is checked afterwards, as on the other curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

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
    non_dominated,
)
from jellybean_solver.frontier.moved_targets import MovedTargets
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.outcome import ACCURACY_TOLERANCE
from jellybean_solver.planning.solve import solve

POINTS = 15  # accuracies that are solved for: with more, the picture does not change to the eye
EQUAL_COST = 2e-5  # relative: costs closer than this are equal, as programs are solved to half of it
LEAST_AREA = 5e-4  # of the curve's range in cost times that in accuracy: smaller boxes are not divided
HALVINGS = 6  # of the range in which the highest mean of several workflows is sought
LOWEST_MEAN = 0.0  # percent: a mean accuracy that every plan of known accuracy reaches


def cost_mean_accuracy(
    problem: Problem,
    *,
    accuracies: Sequence[float] = (),
    points: int = POINTS,
    step: float = 0.0,
    workflows: Sequence[str] = (),
    solve: Solve = solve,
    check: Check = lambda plan: None,
    progress: Progress = lambda done, total, label: None,
) -> Curve:
    """The least cost over the mean accuracy at the problem's rates, from the cheapest plan to the highest mean.

    `accuracies`: means that get a point of their own if they can be reached. `points`: accuracies to solve for, with
    both ends. `step` (percent points): narrower boxes are not divided. `solve` raises a SolverError where time ends;
    the curve then has what was found, and the error is raised if that is nothing. `workflows`, `check`: as for
    `cost_accuracy`.
    """
    sweep = _Sweep(problem, MovedTargets.of(problem, workflows), solve, step)
    progress(0, points, "the cheapest plan")
    why = sweep.start()
    if not sweep.points:
        return Curve(Figure.ACCURACY, (), True, why, step)
    progress(1, points, "the highest mean accuracy")
    sweep.finish()
    for asked in accuracies:
        if sweep.is_inside(asked):
            sweep.divide(asked)
    while sweep.solved < points and (middle := sweep.middle()) is not None:
        progress(sweep.solved, points, f"mean accuracy {middle:.4g}")
        sweep.divide(middle)
    found = tuple(checked(point, sweep.targets, problem, partial(_with_mean, point.x), check) for point in sweep.points)
    progress(points, points, "done")
    ended = (*sweep.highest_text(), *dict.fromkeys(sweep.late))
    return Curve(Figure.ACCURACY, found, not sweep.late, ended, step, sweep.highest)


def _with_mean(mean: float, slo: Slo) -> Slo:
    """The targets with a hard mean accuracy in place of theirs."""
    return replace(slo, mean_accuracy=mean, penalty_usd_per_h=None)


@dataclass
class _Sweep:
    """`late`: why accuracies could not be solved for, as sentences; `unknown`: these accuracies."""

    problem: Problem
    targets: MovedTargets
    solve: Solve
    step: float
    points: list[CurvePoint] = field(default_factory=list)
    highest: float | None = None
    solved: int = 0
    late: list[str] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)

    def start(self) -> tuple[str, ...]:
        """Find the cheapest plan of known accuracy; the reasons if there is none."""
        self.solved += 1
        solution = self.solve(self._asked(LOWEST_MEAN))
        if solution.plan is None:
            return solution.infeasibility.reasons if solution.infeasibility is not None else ()
        self.points = [self._point(LOWEST_MEAN, solution.plan)]
        return ()

    def finish(self) -> None:
        """Find the highest mean accuracy, and the cheapest plan that has it.

        The search under a p99 target is a heuristic: it may find no plan although the first point has one.
        """
        self.solved += 1
        if self.targets.workflows:
            self._find_highest()
            return
        late = len(self.late)
        slo = replace(self._asked(LOWEST_MEAN).slo, mean_accuracy=None)
        best = self._plan(lambda: replace(self.problem, objective=Objective.MEAN_ACCURACY, slo=slo))
        if best is None or best.accuracy is None:
            if late == len(self.late):
                known = f"nothing is known above {self.points[-1].x:.6g}"
                self.late.append(f"{known}: no plan of the highest mean accuracy was found")
            return
        self.highest = best.certificate.bound
        found = self._cheapest(best.accuracy)
        if found is None:  # the plan is there: only its cost may not be the least
            found = self._point(best.accuracy, best, self.points[0].bound_usd_per_h)
        self._keep(found)

    def _find_highest(self) -> None:
        """Find the highest mean accuracy that all moved workflows reach, by bisection."""
        low, high = self.points[-1].x, self.targets.top or 100.0
        step, asked = (high - low) / 2.0**HALVINGS, high
        while high - low > step:
            late, point = len(self.late), self._cheapest(asked)
            if point is not None:
                self._keep(point)
                low = max(asked, point.x)
            elif late < len(self.late):
                return
            else:
                high = asked
            asked = (low + high) / 2.0
        if self.problem.deadline_s is None:  # a search in time proves nothing
            self.highest = max(high, low)

    def is_inside(self, accuracy: float) -> bool:
        """True if a mean accuracy is between those of the first and the last point."""
        return self.points[0].x < accuracy < self.points[-1].x

    def middle(self) -> float | None:
        """The accuracy in the middle of the largest box; None if all are small, or time ended in them."""
        height, width = self._range()
        best, at = LEAST_AREA * height * width, None
        for one, two in itertools.pairwise(self.points):
            wide, high = two.start - one.x, two.cost_usd_per_h - one.bound_usd_per_h
            if wide <= max(self.step, ACCURACY_TOLERANCE) or any(one.x < x < two.start for x in self.unknown):
                continue
            if wide * high > best:
                best, at = wide * high, (one.x + two.start) / 2.0
        return at

    def divide(self, accuracy: float) -> None:
        """Solve for a mean accuracy between two points, unless it is one that a point is proven for."""
        self.solved += 1
        after = next(point for point in self.points if point.x >= accuracy)
        if after.start <= accuracy:
            return
        late = len(self.late)
        found = self._cheapest(accuracy)
        if found is not None:
            self._keep(found)
        elif late == len(self.late):  # none was found where one exists: that of the next point does
            before = max((p.bound_usd_per_h for p in self.points if p.start <= accuracy), default=0.0)
            self._keep(replace(after, start=accuracy, bound_usd_per_h=before))
        else:
            self.unknown.append(accuracy)

    def highest_text(self) -> Iterable[str]:
        """What is known of the highest mean accuracy, as sentences."""
        if self.highest is not None:
            last = self.points[-1].x
            proof = f"; no plan exceeds {self.highest:.6g}" if self.highest > last + 1e-3 else ""
            yield f"{last:.6g} is the highest mean accuracy found{proof}"

    def _keep(self, found: CurvePoint) -> None:
        self.points = non_dominated([*self.points, found], EQUAL_COST)

    def _range(self) -> tuple[float, float]:
        """Ranges of the cost and of the accuracy."""
        first, last = self.points[0], self.points[-1]
        return last.cost_usd_per_h - first.cost_usd_per_h, last.x - first.x

    def _cheapest(self, target: float) -> CurvePoint | None:
        """The cheapest plan for a mean accuracy; None if none was found."""
        plan = self._plan(lambda: self._asked(target))
        return None if plan is None or self.targets.reached(plan) is None else self._point(target, plan)

    def _point(self, target: float, plan: Plan, bound: float | None = None) -> CurvePoint:
        """The point of a cheapest plan for a mean accuracy, or of one with another bound."""
        least = min(bound_usd_per_h(plan), plan.cost.total_usd_per_h) if bound is None else bound
        return CurvePoint(self.targets.reached(plan) or 0.0, plan, least, target)

    def _asked(self, target: float) -> Problem:
        return self.targets.asked(partial(_with_mean, target))

    def _plan(self, asked: Callable[[], Problem]) -> Plan | None:
        """The plan of a changed problem; None if there is none, or time ended, which is noted."""
        try:
            return self.solve(asked()).plan
        except SolverError as error:
            self.late.append(str(error))
            return None
