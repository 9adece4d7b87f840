"""The exact curve of cost over accuracy; each point is a plan with its own certificate.

It is an epsilon-constraint sweep: the cheapest plan, then the cheapest plan more accurate than the
last, until there is none. Every corner of the Pareto frontier is found, because each solve minimises cost over all
remaining plans. Budget and p99 latency are not constraints of the sweep: they are checked afterwards, so that a point
that breaks them is marked instead of missing. Losses are constraints of every solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jellybean_solver.errors import SolverError
from jellybean_solver.frontier.moved_targets import MovedTargets
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.outcome import ACCURACY_TOLERANCE, COST_TOLERANCE, relative_gap
from jellybean_solver.planning.solve import solve
from jellybean_solver.planning.solver import Solution

LOWEST = -1e9  # percent: an accuracy target that every plan of known accuracy reaches

Solve = Callable[[Problem], Solution]
Check = Callable[[Plan], str | None]
Progress = Callable[[float, float, str], None]  # done, total, label


@dataclass(frozen=True, slots=True)
class Corner:
    """A Pareto-optimal plan in cost and accuracy.

    `bound_usd_per_h`: lower bound on the cost of plans more accurate than the previous corner, by the curve's step or
    more. `breaches`: limits that the plan breaks, as sentences. The plan's targets are those of the problem, except the
    accuracy target, which is the plan's own accuracy.
    """

    plan: Plan
    accuracy: float
    bound_usd_per_h: float
    breaches: tuple[str, ...] = ()

    @property
    def cost_usd_per_h(self) -> float:
        """What the plan costs, with what its p99 latencies count above soft targets."""
        return self.plan.cost.total_usd_per_h + self.plan.late_usd_per_h

    @property
    def gap(self) -> float:
        """Relative gap between cost and lower bound; 0 if the plan is proven optimal."""
        return relative_gap(self.cost_usd_per_h, self.bound_usd_per_h, COST_TOLERANCE)


@dataclass(frozen=True, slots=True)
class CostAccuracy:
    """Corners by ascending accuracy and cost. `finished`: it is proven that no plan is more accurate than the last.

    `ended`: why the curve ends there, or why it has no corner, as sentences. `step`: least difference in accuracy,
    percent points; corners closer to the previous one were skipped.
    """

    corners: tuple[Corner, ...]
    finished: bool
    ended: tuple[str, ...]
    step: float = ACCURACY_TOLERANCE

    @property
    def proven(self) -> bool:
        """True if every corner and the end of the curve are proven."""
        return self.finished and all(corner.gap == 0 for corner in self.corners)

    @property
    def exact(self) -> bool:
        """True if the curve is proven and no corner was skipped."""
        return self.proven and self.step <= ACCURACY_TOLERANCE

    def at_least(self, accuracy: float) -> Corner | None:
        """The cheapest corner that reaches `accuracy`; None if none does."""
        return next((corner for corner in self.corners if corner.accuracy >= accuracy - ACCURACY_TOLERANCE), None)


def cost_accuracy(
    problem: Problem,
    *,
    step: float = ACCURACY_TOLERANCE,
    least: float | None = None,
    workflows: Sequence[str] = (),
    solve: Solve = solve,
    check: Check = lambda plan: None,
    progress: Progress = lambda done, total, label: None,
) -> CostAccuracy:
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
        return CostAccuracy((), True, ("the profile knows the accuracy of no selection of variants",))
    tell = _Progress(progress, top)
    sweep = _CornerSweep(targets, solve, step, top, tell, least)
    sweep.run()
    checked: list[Corner] = []
    for corner in sweep.corners:
        tell.checking(len(checked), len(sweep.corners), corner)
        plan = targets.stated(corner.plan, partial(_with_accuracy, corner.accuracy))
        checked.append(replace(corner, plan=plan, breaches=breaches_of(problem, plan, check)))
    tell.done()
    return CostAccuracy(tuple(checked), sweep.finished, sweep.ended, max(step, ACCURACY_TOLERANCE))


def _with_accuracy(accuracy: float | None, slo: Slo) -> Slo:
    """The targets with a least accuracy of any request in place of theirs."""
    return replace(slo, accuracy=accuracy, mean_accuracy=None, penalty_usd_per_h=None)


def _at_any_latency(slo: Slo) -> Slo:
    return replace(slo, latency_p99_s=None)


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
    corners: list[Corner] = field(default_factory=list)
    above: float = math.inf
    kept: int = 0
    finished: bool = True
    ended: tuple[str, ...] = ()

    @property
    def last(self) -> Corner | None:
        return self.corners[-1] if self.corners else None

    def run(self) -> None:
        """Solve for higher and higher targets until there is no plan, or time ends."""
        is_over = False
        while not is_over:
            solution, failed = _asked(self._problem(), self.solve, self.last)
            if solution is None:
                self.finished, self.ended = False, (failed,)
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
        return self.targets.asked(lambda slo: _at_any_latency(_with_accuracy(target, slo)), _at_any_latency)

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
        found = Corner(plan, accuracy, bound_usd_per_h(plan))
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

    def reached(self, corner: Corner) -> None:
        if self.first is None:
            self.first = corner.accuracy
        self.count += 1
        span = self.top - self.first
        share = (corner.accuracy - self.first) / span if span > 0 else 1.0
        self.tell(99.0 * min(1.0, share), 100.0, f"plan {self.count}, accuracy {corner.accuracy:.4g}")

    def checking(self, done: int, total: int, corner: Corner) -> None:
        self.total = float(total)
        self.tell(done, self.total, f"limits of plan {done + 1}, accuracy {corner.accuracy:.4g}")

    def done(self) -> None:
        self.tell(self.total, self.total, "done")


def _asked(problem: Problem, solve: Solve, last: Corner | None) -> tuple[Solution | None, str]:
    """The solution, or None and the solver's error as a sentence; before the first corner, the error is raised."""
    try:
        return solve(problem), ""
    except SolverError as error:
        if last is None:
            raise
        return None, f"nothing is known above {last.accuracy:.10g}: {error}"


def plan_of(solution: Solution) -> Plan | None:
    """The solution's plan, or the plan refused for a limit that the search does not model (the curve marks it)."""
    refused = solution.infeasibility.refused if solution.infeasibility is not None else None
    return solution.plan if solution.plan is not None else refused


def _skipped(solution: Solution, last: Corner, asked: float, *, of_several: bool) -> float | None:
    """The next accuracy target if there is no plan at target `asked`, so that no feasible accuracy is skipped.

    The nearest feasible accuracy if known, else the smallest step above `last`; None if no plan can lie between. What
    is nearest of several workflows is a margin above their targets.
    """
    known = None if of_several else solution.infeasibility
    nearest = None if known is None else known.nearest_accuracy
    least = last.accuracy + ACCURACY_TOLERANCE
    if nearest is not None and nearest < asked:
        return nearest if nearest > least else None
    return least if asked > least + ACCURACY_TOLERANCE / 2.0 else None


def _add(corners: list[Corner], found: Corner) -> None:
    """Append a more accurate corner; it replaces corners of equal or higher cost and inherits their bounds."""
    while corners and found.cost_usd_per_h - (cost := corners[-1].cost_usd_per_h) <= COST_TOLERANCE * max(1.0, cost):
        found = replace(found, bound_usd_per_h=min(found.bound_usd_per_h, corners.pop().bound_usd_per_h))
    corners.append(found)


def bound_usd_per_h(plan: Plan) -> float:
    """Lower bound on the cost of every plan for the same targets; with a soft one, that is as accurate as this plan."""
    certificate, late = plan.certificate, plan.late_usd_per_h
    if certificate.is_optimal:
        return plan.cost.total_usd_per_h + late
    return certificate.bound - certificate.penalty_usd_per_h + late


def breaches_of(problem: Problem, plan: Plan, check: Check) -> tuple[str, ...]:
    """The budget if the plan breaks it, and what `check` says, as sentences."""
    unseen = check(plan)
    return (*evaluate(problem, plan).breaches, *((unseen,) if unseen is not None else ()))


def _why_it_ends(solution: Solution, last: Corner | None, target: float | None, top: float) -> tuple[str, ...]:
    if last is not None and last.accuracy >= top - ACCURACY_TOLERANCE:
        return (f"{last.accuracy:.10g} is the best that the profile knows of any selection",)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    if last is not None:
        return (f"no plan is more accurate than {last.accuracy:.10g}", *reasons)
    return reasons if target is None else ("no selection whose accuracy the profile knows fits at these rates",)
