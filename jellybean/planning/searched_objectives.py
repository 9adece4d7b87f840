"""The highest rates or the least p99 latency that a plan can have, as the settings with which `plan` finds that plan.

Both are found by asking for cheapest plans under ever other targets, so every other command knows the result as an
ordinary plan with `--set` options. Of several workflows the rates are those of all of them, by one factor, and the
latency is the largest of all; none is left out, as the others would be faster without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean.display import formats
from jellybean.documents import (
    AnyProject,
    Settings,
    build_problem,
    everyone_served,
    latency_target,
    objective,
    parts_of,
    scaled_rates,
    with_settings,
)
from jellybean.errors import InputError
from jellybean.planning.deadline.predicted_latency import judged_latency
from jellybean.planning.planned import Planned
from jellybean_solver import Objective, OutOfTimeError, Solution, limited

PRECISION, LATENCY_PRECISION = 0.005, 0.05  # relative width of the range at which the bisection ends
MOST_FACTOR = 2.0**20  # on the documents' rates, or on a p99 of a second, either way
TINY_S = 1e-6  # a p99 target that no plan meets
MOST_LISTED = 6  # rates in a sentence
SEARCH_SHARE = 0.6  # of the time limit, for the highest rates or least latency: more leaves their plan no time

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What planning a project gave: whether there is a plan, and the least p99 latency that was found, in seconds.

    `is_last`: the time of the search is over, so that nothing more is tried.
    """

    found: bool
    nearest_p99_s: float | None = None
    is_last: bool = False


TryPlan = Callable[[AnyProject], Outcome]
# In so many seconds; whether it is the last one, of which all is asked, or one of the search.
PlanOne = Callable[[AnyProject, float | None, bool], Planned]


@dataclass(frozen=True, slots=True)
class Best:
    """`settings`: of the best plan. `text`: what it reaches, and what was refused."""

    settings: Settings
    text: str


def stated_objective(project: AnyProject) -> Objective:
    """The objective of a project. InputError if its workflows have unlike ones: one plan has one."""
    stated = {part: own.workflow.objective for part, own in parts_of(project).items()}
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{part} {asked.value}" for part, asked in stated.items())
        raise InputError(f"workflows that share a fleet have one objective, not several ({listed}): write one into all")
    return next(iter(stated.values()))


def best_settings(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The settings of the best plan for the project's objective; None if no plan is found whatever is asked for."""
    if stated_objective(project) is Objective.RATE:
        return _highest_rates(project, try_plan, progress)
    return _least_latency(project, try_plan, progress)


def at_least_cost(project: AnyProject, settings: Settings) -> AnyProject:
    """The project with further settings, the cost as objective, and no workflow that may be left out."""
    return with_settings(project, (*objective(project, Objective.COST), *everyone_served(project), *settings))


def _highest_rates(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
    """Bisection over a factor on the rates of all sources."""
    search = Bisection(project, try_plan, progress, lambda x: scaled_rates(project, x), lambda x: _rates(project, x))
    if not search.run(PRECISION):
        return None
    settings = scaled_rates(project, search.low)
    if search.is_over:
        return Best(settings, f"highest rates found before the time ended: {_rates(project, search.low)}")
    if search.high > MOST_FACTOR:
        return Best(settings, f"no limit on the rates was found up to {_rates(project, search.low)}")
    refused = f"for {_rates(project, search.high)} no plan was found"
    return Best(settings, f"highest rates: {_rates(project, search.low)}; {refused}")


def _rates(project: AnyProject, factor: float) -> str:
    settings = [one for one in scaled_rates(project, factor) if one.path[-1] == "rate"]
    if len(settings) > MOST_LISTED:
        return f"{factor:.4g} times the stated rates"
    prefixes = ["".join(f"{name}/" for name in (one.site, one.part) if name) for one in settings]
    return ", ".join(f"{prefix}{one.path[1]} {one.value}" for prefix, one in zip(prefixes, settings, strict=True))


def _least_latency(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The nearest p99 latency to a target that no plan meets; without one, by bisection over its inverse."""
    progress(0, 2, "least p99 latency")
    nearest_s = try_plan(at_least_cost(project, latency_target(project, TINY_S))).nearest_p99_s
    if nearest_s is None:
        search = Bisection(
            project, try_plan, progress, lambda x: latency_target(project, 1.0 / x), lambda x: formats.duration(1.0 / x)
        )
        if not search.run(LATENCY_PRECISION):
            return None
        nearest_s = 1.0 / search.low
    text = f"least p99 latency that a plan was found for: {formats.duration(nearest_s)}"
    return Best(latency_target(project, nearest_s), text)


@dataclass
class Bisection:
    """The largest factor with a plan: one was found for `low`, and none for `high`. `is_over`: time ended it."""

    project: AnyProject
    try_plan: TryPlan
    progress: Progress
    settings: Callable[[float], Settings]
    text: Callable[[float], str]
    low: float = 1.0
    high: float = 2.0
    steps: int = 0
    is_over: bool = False

    def run(self, precision: float) -> bool:
        """Narrow the range, which begins at 1; False if no plan is found however small the factor is."""
        if not self._is_feasible(1.0):
            self.low, self.high = 0.5, 1.0
        while self.low >= 1.0 and self.high <= MOST_FACTOR and self._is_feasible(self.high):
            self.low, self.high = self.high, 2.0 * self.high
        while self.low < 1.0 and not self._is_feasible(self.low):
            self.low, self.high = self.low / 2.0, self.low
            if self.low < 1.0 / MOST_FACTOR:
                return False
        while self.low * (1.0 + precision) < self.high <= MOST_FACTOR:
            middle = math.sqrt(self.low * self.high)
            self.low, self.high = (middle, self.high) if self._is_feasible(middle) else (self.low, middle)
        return True

    def _is_feasible(self, factor: float) -> bool:
        if self.is_over:  # what was found before stands
            return False
        self.steps += 1
        self.progress(min(self.steps, 19), 20, f"trying {self.text(factor)}")
        outcome = self.try_plan(at_least_cost(self.project, self.settings(factor)))
        self.is_over = outcome.is_last
        return outcome.found


def plan_for_objective(project: AnyProject, plan_one: PlanOne, time_limit_s: float | None, report: Progress) -> Planned:
    """The plan of the highest rates or the least p99 latency: the cheapest plan under the targets that were found."""
    clock = limited(time_limit_s, time.monotonic)
    search = clock.share(SEARCH_SHARE)
    ended: list[OutOfTimeError] = []
    known: list[Planned] = []
    started = time.perf_counter()

    def try_plan(asked: AnyProject) -> Outcome:
        try:
            found = plan_one(asked, search.left(), False)
        except OutOfTimeError as error:  # what was found before stands
            ended.append(error)
            return Outcome(found=False, is_last=True)
        if found.plan is not None or found.fastest is not None:
            known.append(found)
        return Outcome(found.plan is not None, found.nearest_p99_s, is_last=search.left() == 0.0)

    best = best_settings(project, try_plan, report)
    if best is None and ended:
        raise ended[0]
    asked, text = at_least_cost(project, () if best is None else best.settings), "" if best is None else best.text
    try:
        planned = plan_one(asked, clock.left(), True)
    except OutOfTimeError:
        if best is None or not known:
            raise
        planned = _as_searched(known[-1], asked)
    if planned.plan is None and best is not None and known:
        planned = _as_searched(known[-1], asked)
    return replace(planned, solve_s=time.perf_counter() - started, best=text, asked=asked)


def _as_searched(found: Planned, asked: AnyProject) -> Planned:
    """The plan of the search for an objective, where time leaves no better one: its last one, or its fastest one."""
    plan = found.plan or found.fastest
    if plan is None:
        raise AssertionError("the search has a plan")
    plan = replace(plan, overrides=asked.overrides)
    solution = Solution(plan, None, found.solution.selections_tried)
    return replace(
        found,
        problem=build_problem(asked),
        solution=solution,
        plan=plan,
        reasons=(),
        judged=judged_latency(plan),
        cheapest=None,
    )
