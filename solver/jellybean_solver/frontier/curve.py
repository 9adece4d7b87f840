"""A curve of plans: the best plan at each of several values of a figure, with its proof, or why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jellybean_solver.frontier.moved_targets import Change, MovedTargets
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import ACCURACY_TOLERANCE, COST_TOLERANCE, relative_gap
from jellybean_solver.planning.solver import Solution

Solve = Callable[[Problem], Solution]
Check = Callable[[Plan], str | None]
Progress = Callable[[float, float, str], None]  # done, total, label


class Figure(StrEnum):
    """A figure of a plan that a curve is about. Of two, the first one here has its values along the curve."""

    ACCURACY = "accuracy"  # percent
    RATE = "rate"  # requests per second of a source
    LATENCY = "latency"  # p99, seconds
    ENERGY = "energy"  # W, in all sites
    CARBON = "carbon"  # g/h, in all sites
    COST = "cost"  # USD per hour, with what p99 latencies count above soft targets


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best plan found at `x`, an accuracy in percent or a factor on the rates; None, with `reasons`, if none is.

    `start`: the plan is the cheapest one found for all values from there up to `x`; inf: for `x` alone.
    `bound_usd_per_h`: lower bound on the cost of every plan for these values. `breaches`: limits that the plan breaks,
    as sentences. `finished`: False if time ended before it was known whether there is a plan. `figures` of the plan and
    `options` that make it: of those who draw the curve.
    """

    x: float
    plan: Plan | None
    bound_usd_per_h: float = 0.0
    start: float = math.inf
    breaches: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    finished: bool = True
    figures: Mapping[Figure, float] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def cost_usd_per_h(self) -> float:
        """What the plan costs, with what its p99 latencies count above soft targets; inf without a plan."""
        return math.inf if self.plan is None else self.plan.cost.total_usd_per_h + self.plan.late_usd_per_h

    @property
    def gap(self) -> float:
        """Relative gap between cost and lower bound; 0 if the plan is proven optimal, or there is none."""
        return 0.0 if self.plan is None else relative_gap(self.cost_usd_per_h, self.bound_usd_per_h, COST_TOLERANCE)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising values of `x`, whose plans are the best in `y`.

    `finished`: the end of the curve is proven, and time ended no search. `ended`: why the curve ends there, or has no
    point, as sentences. `step`: least distance between two points that were searched for; None if the values are given.
    `highest`: upper bound on the mean accuracy of every plan, or the highest feasible rate; None if it is unknown.
    """

    x: Figure
    points: tuple[CurvePoint, ...]
    finished: bool
    ended: tuple[str, ...]
    step: float | None = None
    highest: float | None = None
    y: Figure = Figure.COST

    @property
    def gap(self) -> float:
        """The largest relative gap of a point; 0 if all plans are proven optimal."""
        return max((point.gap for point in self.points), default=0.0)

    @property
    def proven(self) -> bool:
        """True if every point and the end of the curve are proven."""
        return self.finished and self.gap == 0.0

    @property
    def exact(self) -> bool:
        """True if the curve is proven and no value was skipped: each plan is the best from the point before on."""
        pairs = itertools.pairwise(self.points)
        skips = any(before.x < after.start < math.inf for before, after in pairs)
        return self.proven and not skips and (self.step is None or self.step <= ACCURACY_TOLERANCE)

    def at_least(self, x: float) -> CurvePoint | None:
        """The first point that reaches a value; None if none does."""
        return next((point for point in self.points if point.x >= x - ACCURACY_TOLERANCE), None)


def plan_of(solution: Solution) -> Plan | None:
    """The solution's plan, or the plan refused for a limit that the search does not model (the curve marks it)."""
    refused = solution.infeasibility.refused if solution.infeasibility is not None else None
    return solution.plan if solution.plan is not None else refused


def bound_usd_per_h(plan: Plan) -> float:
    """Lower bound on the cost of every plan for the same targets; with a soft one, that is as accurate as this plan."""
    certificate, late = plan.certificate, plan.late_usd_per_h
    if certificate.is_optimal:
        return plan.cost.total_usd_per_h + late
    return certificate.bound - certificate.penalty_usd_per_h + late


def checked(point: CurvePoint, targets: MovedTargets, problem: Problem, moved: Change, check: Check) -> CurvePoint:
    """The point with the stated targets, of which the moved ones are changed, and with what its plan breaks of them."""
    if point.plan is None:
        return point
    plan = targets.stated(point.plan, moved)
    unseen = check(plan)
    breaches = (*evaluate(problem, plan).breaches, *(() if unseen is None else (unseen,)))
    return replace(point, plan=plan, breaches=breaches)


def non_dominated(points: Sequence[CurvePoint], equal_cost: float) -> list[CurvePoint]:
    """The points that no other one dominates, by rising accuracy; they take over the targets of those they dominate.

    `equal_cost`: relative; a more accurate point that is dearer by less dominates, too.
    """
    kept: list[CurvePoint] = []
    for point in sorted(points, key=lambda one: (one.x, -one.cost_usd_per_h)):
        taken = point
        while kept and taken.cost_usd_per_h <= kept[-1].cost_usd_per_h + equal_cost * max(1.0, taken.cost_usd_per_h):
            gone = kept.pop()
            least = min(taken.bound_usd_per_h, gone.bound_usd_per_h)
            taken = replace(taken, start=min(taken.start, gone.start), bound_usd_per_h=least)
        kept.append(taken)
    return kept
