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
    non_dominated,
    plan_of,
)
from jellybean_solver.frontier.moved_targets import MovedTargets, at_any_latency
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
    if targets.top is None:
        return Curve(Figure.ACCURACY, (), True, ("the profile knows the accuracy of no selection of variants",), step)
    sweep = _CornerSweep(targets, solve, step, progress, targets.top, least)
    sweep.run()
    corners: list[CurvePoint] = []
    for number, corner in enumerate(sweep.corners):
        progress(number, len(sweep.corners), f"limits of plan {number + 1}, accuracy {corner.x:.4g}")
        found = replace(corner, start=corners[-1].x if corners else LOWEST)
        corners.append(checked(found, targets, problem, partial(_with_accuracy, corner.x), check))
    progress(len(corners) or 100.0, len(corners) or 100.0, "done")
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
    progress: Progress
    top: float
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
        """Solve for higher and higher targets until there is no plan, or time ends; SolverError before the first.

        Progress is in percent of the range from the first corner's accuracy to the best.
        """
        self.progress(0.0, 100.0, "the cheapest plan")
        while not self.ended:
            try:
                solution = self.solve(self._problem())
            except SolverError as error:
                if self.last is None:
                    raise
                self.finished, self.ended = False, (f"nothing is known above {self.last.x:.10g}: {error}",)
                return
            plan = plan_of(solution)
            if plan is None:
                self._lower(solution)
            elif (accuracy := self.targets.reached(plan)) is None:
                self.target = LOWEST
            else:
                self._keep(CurvePoint(accuracy, plan, bound_usd_per_h(plan)))

    def _problem(self) -> Problem:
        """The problem of the next plan, whose p99 latency is judged afterwards."""
        target = self.target
        return self.targets.asked(lambda slo: at_any_latency(_with_accuracy(target, slo)), at_any_latency)

    def _lower(self, solution: Solution) -> None:
        """Lower the target, which has no plan, to the nearest one that may have one; end if no plan can lie between.

        That is the nearest feasible accuracy if it is known, else the smallest step above the last corner. What is
        nearest of several workflows is a margin above their targets.
        """
        last, asked, known = self.last, self.target, solution.infeasibility
        if last is not None and asked is not None:
            self.kept = len(self.corners) if math.isinf(self.above) else self.kept
            self.above, least = asked, last.x + ACCURACY_TOLERANCE
            nearest = None if known is None or self.targets.workflows else known.nearest_accuracy
            if nearest is None or nearest >= asked:
                nearest = least
            if nearest >= least and asked > nearest + ACCURACY_TOLERANCE / 2.0:
                self.target = nearest
                return
        reasons = () if known is None else known.reasons
        if last is not None and last.x >= self.top - ACCURACY_TOLERANCE:
            self.ended = (f"{last.x:.10g} is the best that the profile knows of any selection",)
        elif last is not None:
            self.ended = (f"no plan is more accurate than {last.x:.10g}", *reasons)
        else:
            unknown = "no selection whose accuracy the profile knows fits at these rates"
            self.ended = reasons if asked is None and reasons else (unknown,)

    def _keep(self, found: CurvePoint) -> None:
        """Add a corner, and raise the target above it."""
        if not math.isinf(self.above):
            del self.corners[self.kept :]  # of the corners within the last step, keep only the most accurate
        self.corners = non_dominated([*self.corners, found], COST_TOLERANCE)
        self.target = found.x + max(ACCURACY_TOLERANCE, min(self.step, (self.above - found.x) / 2.0))
        span, first = self.top - self.corners[0].x, self.corners[0].x
        share = (found.x - first) / span if span > 0 else 1.0
        self.progress(99.0 * min(1.0, share), 100.0, f"plan {len(self.corners)}, accuracy {found.x:.4g}")
