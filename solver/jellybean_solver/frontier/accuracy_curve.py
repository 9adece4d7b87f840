"""The exact curve of cost over accuracy; each point is a plan with its own certificate.

It is an epsilon-constraint sweep: the cheapest plan, then the cheapest plan more accurate than the
last, until there is none. Every corner of the Pareto frontier is found, because each solve minimises cost over all
remaining plans. Budget and p99 latency are not constraints of the sweep: they are checked afterwards, so that a point
that breaks them is marked instead of missing. Losses are constraints of every solve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    plan_of,
)
from jellybean_solver.frontier.moved_targets import MovedTargets, at_any_latency
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.outcome import ACCURACY_TOLERANCE, COST_TOLERANCE
from jellybean_solver.planning.solve import solve
from jellybean_solver.planning.solver import Solution

LOWEST = -1e9  # percent: an accuracy target that every plan of known accuracy reaches


def cost_accuracy(
    problem: Problem,
    *,
    step: float = ACCURACY_TOLERANCE,
    least: float | None = None,
    workflows: Sequence[str] = (),
    solve: Solve = solve,
    check: Check = lambda plan: None,
    progress: Progress = lambda done, total, label: None,
) -> Curve:
    """The Pareto frontier of cost and accuracy at the problem's rates, of plans with one selection for all requests.

    `step` (percent points) is the least increase of the accuracy target from one solve to the next; a larger one gives
    fewer corners. The last corner is always found, by bisecting the last step. `least`: lowest accuracy of a corner, in
    percent. `workflows`: those of several that get the target, by default all; the others keep theirs.

    `solve` may have a time limit; gaps then say how far each corner may be from the optimum. `check` returns the reason
    why a plan breaks a limit that the solver does not model (a simulated p99), or None. SolverError if time ends before
    the first plan is found.
    """
    targets = MovedTargets.of(problem, workflows)
    top = targets.top
    if top is None:
        return Curve(Figure.ACCURACY, (), True, ("the profile knows the accuracy of no selection of variants",), step)
    tell = _Progress(progress, top)
    sweep = _CornerSweep(targets, solve, step, top, tell, least)
    sweep.run()
    corners: list[CurvePoint] = []
    for corner in sweep.corners:
        tell.checking(len(corners), len(sweep.corners), corner)
        found = replace(corner, start=corners[-1].x if corners else LOWEST)
        corners.append(checked(found, targets, problem, partial(_with_accuracy, corner.x), check))
    tell.done()
    return Curve(Figure.ACCURACY, tuple(corners), sweep.finished, sweep.ended, step)


def _with_accuracy(accuracy: float | None, slo: Slo) -> Slo:
    """The targets with a least accuracy of any request in place of theirs."""
    return replace(slo, accuracy=accuracy, mean_accuracy=None, penalty_usd_per_h=None)


@dataclass
class _CornerSweep:
    """Finds the corners by rising accuracy. `top`: upper bound on the accuracy of every selection.

    `target`: the accuracy that the next plan must reach. `above`: an accuracy that no plan reaches; `kept`: number of
    corners when that became known, after which the last step is bisected. `finished`, `ended`: as of the curve.
    """

    targets: MovedTargets
    solve: Solve
    step: float
    top: float
    tell: _Progress
    target: float | None
    corners: list[CurvePoint] = field(default_factory=list)
    above: float = math.inf
    kept: int = 0
    finished: bool = True
    ended: tuple[str, ...] = ()

    @property
    def last(self) -> CurvePoint | None:
        return self.corners[-1] if self.corners else None

    def run(self) -> None:
        """Solve for higher and higher targets until there is no plan, or time ends; SolverError before the first."""
        is_over = False
        while not is_over:
            try:
                solution = self.solve(self._problem())
            except SolverError as error:
                if self.last is None:
                    raise
                self.finished, self.ended = False, (f"nothing is known above {self.last.x:.10g}: {error}",)
                return
            plan = plan_of(solution)
            if plan is None:
                is_over = not self._bisect(solution)
            elif (accuracy := self.targets.reached(plan)) is None:
                self.target = LOWEST
            else:
                self._keep(plan, accuracy)

    def _problem(self) -> Problem:
        """The problem of the next plan, whose p99 latency is judged afterwards."""
        target = self.target
        return self.targets.asked(lambda slo: at_any_latency(_with_accuracy(target, slo)), at_any_latency)

    def _bisect(self, solution: Solution) -> bool:
        """Lower the target, which has no plan, to one above the last corner; False if no plan can lie between."""
        last, asked = self.last, self.target
        if last is not None and asked is not None:
            self.kept = len(self.corners) if math.isinf(self.above) else self.kept
            self.above = asked
            between = _skipped(solution, last, asked, of_several=bool(self.targets.workflows))
            if between is not None:
                self.target = between
                return True
        self.ended = _why_it_ends(solution, last, asked, self.top)
        return False

    def _keep(self, plan: Plan, accuracy: float) -> None:
        """Add the corner of a plan, and raise the target above it."""
        found = CurvePoint(accuracy, plan, bound_usd_per_h(plan))
        if not math.isinf(self.above):
            del self.corners[self.kept :]  # of the corners within the last step, keep only the most accurate
        _add(self.corners, found)
        self.target = accuracy + max(ACCURACY_TOLERANCE, min(self.step, (self.above - accuracy) / 2.0))
        self.tell.reached(found)


class _Progress:
    """Progress of the sweep, in percent of the range from the cheapest plan's accuracy to the best; then of the checks.

    Checks have a separate bar, because simulating a plan may take far longer than finding it.
    """

    def __init__(self, tell: Progress, top: float) -> None:
        self.tell, self.top, self.count, self.total = tell, top, 0, 100.0
        self.first: float | None = None
        tell(0.0, 100.0, "the cheapest plan")

    def reached(self, corner: CurvePoint) -> None:
        if self.first is None:
            self.first = corner.x
        self.count += 1
        span = self.top - self.first
        share = (corner.x - self.first) / span if span > 0 else 1.0
        self.tell(99.0 * min(1.0, share), 100.0, f"plan {self.count}, accuracy {corner.x:.4g}")

    def checking(self, done: int, total: int, corner: CurvePoint) -> None:
        self.total = float(total)
        self.tell(done, self.total, f"limits of plan {done + 1}, accuracy {corner.x:.4g}")

    def done(self) -> None:
        self.tell(self.total, self.total, "done")


def _skipped(solution: Solution, last: CurvePoint, asked: float, *, of_several: bool) -> float | None:
    """The next accuracy target if there is no plan at target `asked`, so that no feasible accuracy is skipped.

    The nearest feasible accuracy if known, else the smallest step above `last`; None if no plan can lie between. What
    is nearest of several workflows is a margin above their targets.
    """
    known = None if of_several else solution.infeasibility
    nearest = None if known is None else known.nearest_accuracy
    least = last.x + ACCURACY_TOLERANCE
    if nearest is not None and nearest < asked:
        return nearest if nearest > least else None
    return least if asked > least + ACCURACY_TOLERANCE / 2.0 else None


def _add(corners: list[CurvePoint], found: CurvePoint) -> None:
    """Append a more accurate corner; it replaces corners of equal or higher cost and inherits their bounds."""
    while corners and found.cost_usd_per_h - (cost := corners[-1].cost_usd_per_h) <= COST_TOLERANCE * max(1.0, cost):
        found = replace(found, bound_usd_per_h=min(found.bound_usd_per_h, corners.pop().bound_usd_per_h))
    corners.append(found)


def _why_it_ends(solution: Solution, last: CurvePoint | None, target: float | None, top: float) -> tuple[str, ...]:
    if last is not None and last.x >= top - ACCURACY_TOLERANCE:
        return (f"{last.x:.10g} is the best that the profile knows of any selection",)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    if last is not None:
        return (f"no plan is more accurate than {last.x:.10g}", *reasons)
    return reasons if target is None else ("no selection whose accuracy the profile knows fits at these rates",)
