"""The highest rates or the least p99 latency that a plan can have, as the settings with which `plan` finds that plan.

Both are found by asking for cheapest plans under ever other targets, so every other command knows the result as an
ordinary plan with `--set` options. Of several workflows the rates are those of all of them, by one factor, and the
latency is the largest of all; none is left out, as the others would be faster without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

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
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import judged_latency
from jellybean_solver import Clock, Objective, OutOfTimeError, Progress

PRECISION, LATENCY_PRECISION = 0.005, 0.05  # relative width of the range at which the bisection ends
MOST_FACTOR = 2.0**20  # on the documents' rates, or on a p99 of a second, either way
TINY_S = 1e-6  # a p99 target that no plan meets
MOST_LISTED = 6  # rates in a sentence
SEARCH_SHARE = 0.6  # of the time limit, for the highest rates or least latency: more leaves their plan no time

# In so many seconds; whether it is the last one, of which all is asked, or one of the search.
PlanOne = Callable[[AnyProject, float | None, bool], Planned]


def stated_objective(project: AnyProject) -> Objective:
    """The objective of a project. InputError if its workflows have unlike ones: one plan has one."""
    stated = {part: own.workflow.objective for part, own in parts_of(project).items()}
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{part} {asked.value}" for part, asked in stated.items())
        raise InputError(f"workflows that share a fleet have one objective, not several ({listed}): write one into all")
    return next(iter(stated.values()))


def at_least_cost(project: AnyProject, settings: Settings) -> AnyProject:
    """The project with further settings, the cost as objective, and no workflow that may be left out."""
    return with_settings(project, (*objective(project, Objective.COST), *everyone_served(project), *settings))


def _rates(project: AnyProject, factor: float) -> str:
    settings = [one for one in scaled_rates(project, factor) if one.path[-1] == "rate"]
    if len(settings) > MOST_LISTED:
        return f"{factor:.4g} times the stated rates"
    prefixes = ["".join(f"{name}/" for name in (one.site, one.part) if name) for one in settings]
    return ", ".join(f"{prefix}{one.path[1]} {one.value}" for prefix, one in zip(prefixes, settings, strict=True))


def largest_factor(holds: Callable[[float], bool], precision: float) -> tuple[float, float] | None:
    """A factor that holds, and one that does not and is larger by this relative width; None if none holds.

    The larger one is above `MOST_FACTOR` if no factor was found that does not hold.
    """
    low, high = (1.0, 2.0) if holds(1.0) else (0.5, 1.0)
    while low >= 1.0 and high <= MOST_FACTOR and holds(high):
        low, high = high, 2.0 * high
    while low < 1.0 and not holds(low):
        low, high = low / 2.0, low
        if low < 1.0 / MOST_FACTOR:
            return None
    while low * (1.0 + precision) < high <= MOST_FACTOR:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


class ObjectiveSearch:
    """Plans at the least cost under ever other settings, within a part of the time; what was found last stands."""

    def __init__(self, project: AnyProject, plan_one: PlanOne, clock: Clock, report: Progress) -> None:
        self.project, self.plan_one, self.clock, self.report = project, plan_one, clock, report
        self.last: Planned | None = None
        self.ended: OutOfTimeError | None = None
        self.is_over, self.steps = False, 0

    def tried(self, settings: Settings, text: str) -> Planned | None:
        """What planning with the settings gives; None once the time is over."""
        if self.is_over:
            return None
        self.steps += 1
        self.report(min(self.steps, 19), 20, f"trying {text}")
        try:
            planned = self.plan_one(at_least_cost(self.project, settings), self.clock.left(), False)
        except OutOfTimeError as error:
            self.ended, self.is_over = error, True
            return None
        if planned.plan is not None or planned.nearest_p99_s is not None:
            self.last = planned
        self.is_over = self.clock.left() == 0.0
        return planned

    def holds(self, settings: Settings, text: str) -> bool:
        """True if there is a plan with the settings."""
        planned = self.tried(settings, text)
        return planned is not None and planned.plan is not None

    def highest_rates(self) -> tuple[Settings, str] | None:
        """The settings of the highest rates with a plan, by one factor, and what was refused."""
        project = self.project
        found = largest_factor(lambda x: self.holds(scaled_rates(project, x), _rates(project, x)), PRECISION)
        if found is None:
            return None
        low, high = found
        text = f"highest rates: {_rates(project, low)}; for {_rates(project, high)} no plan was found"
        if self.is_over:
            text = f"highest rates found before the time ended: {_rates(project, low)}"
        elif high > MOST_FACTOR:
            text = f"no limit on the rates was found up to {_rates(project, low)}"
        return scaled_rates(project, low), text

    def least_latency(self) -> tuple[Settings, str] | None:
        """Those of the nearest p99 latency to a target that no plan meets; without one, by bisection."""
        first = self.tried(latency_target(self.project, TINY_S), "the least p99 latency")
        seconds = None if first is None else first.nearest_p99_s
        if seconds is None:
            found = largest_factor(
                lambda x: self.holds(latency_target(self.project, 1.0 / x), formats.duration(1.0 / x)),
                LATENCY_PRECISION,
            )
            if found is None:
                return None
            seconds = 1.0 / found[0]
        text = f"least p99 latency that a plan was found for: {formats.duration(seconds)}"
        return latency_target(self.project, seconds), text


def plan_for_objective(project: AnyProject, plan_one: PlanOne, clock: Clock, report: Progress) -> Planned:
    """The plan of the highest rates or the least p99 latency: the cheapest plan under the targets that were found."""
    search, started = ObjectiveSearch(project, plan_one, clock.share(SEARCH_SHARE), report), time.perf_counter()
    best = search.highest_rates() if stated_objective(project) is Objective.RATE else search.least_latency()
    if best is None and search.ended is not None:
        raise search.ended
    settings, text = best or ((), "")
    asked, last = at_least_cost(project, settings), search.last if best is not None else None
    try:
        planned = plan_one(asked, clock.left(), True)
    except OutOfTimeError:
        if last is None:
            raise
        planned = _as_searched(last, asked)
    if planned.plan is None and last is not None:
        planned = _as_searched(last, asked)
    return replace(planned, solve_s=time.perf_counter() - started, best=text, options=asked.overrides)


def _as_searched(found: Planned, asked: AnyProject) -> Planned:
    """The plan of the search for an objective, where time leaves no better one: its last one, or its fastest one."""
    plan = found.plan or found.fastest
    if plan is None:
        raise AssertionError("the search has a plan")
    found = replace(found, problem=build_problem(asked), reasons=(), judged=judged_latency(plan), cheapest=None)
    return found.with_plan(replace(plan, overrides=asked.overrides))
