"""The highest rates or the least p99 latency that a plan can have, as the options with which `plan` finds that plan.

Both are found by asking for cheapest plans under ever other targets, so every other command knows the result as an
ordinary plan with `--set` options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jellybean.display import formats
from jellybean.documents import Project, load_project
from jellybean.quantities import DURATION, RATE, format_quantity
from jellybean_solver import Objective

PRECISION = 0.005  # relative width of the range of rates at which the bisection ends
MOST_FACTOR = 2.0**20  # on the documents' rates, either way
TINY_S = 1e-6  # a p99 target that no plan meets
DIGITS = 4  # of rates in options

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What planning a project gave: whether there is a plan, and the least p99 latency that was found, in seconds.

    `is_last`: the time of the search is over, so that nothing more is tried.
    """

    found: bool
    nearest_p99_s: float | None = None
    is_last: bool = False


TryPlan = Callable[[Project], Outcome]


@dataclass(frozen=True, slots=True)
class Best:
    """`options`: `--set` options of the best plan. `text`: what it reaches, and what was refused."""

    options: tuple[str, ...]
    text: str


def best_options(project: Project, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The options of the best plan for the project's objective; None if no plan is found whatever is asked for."""
    if project.workflow.objective is Objective.RATE:
        return _highest_rates(project, try_plan, progress)
    return _least_latency(project, try_plan, progress)


def with_options(project: Project, options: tuple[str, ...]) -> Project:
    """The project with further `--set` options, and the cost as objective."""
    overrides = (*project.overrides, "objective=cost", *options)
    return load_project(project.directory, overrides, accept_stale=project.accept_stale)


def _highest_rates(project: Project, try_plan: TryPlan, progress: Progress) -> Best | None:
    """Bisection over a factor on the rates of all sources."""
    steps, is_over = 0, False

    def is_feasible(factor: float) -> bool:
        nonlocal steps, is_over
        if is_over:  # what was found before stands
            return False
        steps += 1
        progress(min(steps, 19), 20, f"trying {_rates_text(project, factor)}")
        outcome = try_plan(with_options(project, scaled_rate_options(project, factor)))
        is_over = outcome.is_last
        return outcome.found

    low, high = (1.0, 2.0) if is_feasible(1.0) else (0.5, 1.0)
    while low >= 1.0 and high <= MOST_FACTOR and is_feasible(high):
        low, high = high, 2.0 * high
    while low < 1.0 and not is_feasible(low):
        low, high = low / 2.0, low
        if low < 1.0 / MOST_FACTOR:
            return None
    if high > MOST_FACTOR:
        return Best(
            scaled_rate_options(project, low), f"no limit on the rates was found up to {_rates_text(project, low)}"
        )
    while high > low * (1.0 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_feasible(middle) else (low, middle)
    text = f"highest rates: {_rates_text(project, low)}; for {_rates_text(project, high)} no plan was found"
    return Best(scaled_rate_options(project, low), text)


def _scaled(project: Project, factor: float) -> Mapping[str, str]:
    """Source -> its scaled rate as text."""
    sources = project.workflow.sources.items()
    return {name: format_quantity(RATE, factor * source.rate_per_s, DIGITS) for name, source in sources}


def _rates_text(project: Project, factor: float) -> str:
    return ", ".join(f"{name} {rate}" for name, rate in _scaled(project, factor).items())


def scaled_rate_options(project: Project, factor: float) -> tuple[str, ...]:
    """The `--set` options for so many times the rates of all sources, which are made of as many more streams."""
    options = [f"sources.{name}.rate={rate}" for name, rate in _scaled(project, factor).items()]
    for name, source in project.workflow.sources.items():
        if source.streams is not None:  # more streams, rather than faster ones
            options.append(f"sources.{name}.streams={max(1, round(factor * source.streams))}")
    return tuple(options)


def _least_latency(project: Project, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The nearest p99 latency to a target that no plan meets."""
    progress(0, 2, "least p99 latency")
    asked = with_options(project, (f"slo.latency_p99={format_quantity(DURATION, TINY_S)}",))
    nearest_s = try_plan(asked).nearest_p99_s
    if nearest_s is None:
        return None
    option = f"slo.latency_p99={format_quantity(DURATION, nearest_s)}"
    return Best((option,), f"least p99 latency that a plan was found for: {formats.duration(nearest_s)}")
