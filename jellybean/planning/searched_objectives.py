"""The highest rates or the least p99 latency that a plan can have, as the options with which `plan` finds that plan.

Both are found by asking for cheapest plans under ever other targets, so every other command knows the result as an
ordinary plan with `--set` options. The rates of several workflows are those of all of them together, by one factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jellybean.display import formats
from jellybean.documents import AnyProject, Project, load_any_project
from jellybean.errors import InputError
from jellybean.quantities import DURATION, RATE, format_quantity
from jellybean_solver import WORKFLOW_SEPARATOR, Objective

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


TryPlan = Callable[[AnyProject], Outcome]


@dataclass(frozen=True, slots=True)
class Best:
    """`options`: `--set` options of the best plan. `text`: what it reaches, and what was refused."""

    options: tuple[str, ...]
    text: str


def stated_objective(project: AnyProject) -> Objective:
    """The objective of a project. InputError if its workflows have unlike ones: one plan has one."""
    stated = {prefix: own.workflow.objective for prefix, own in by_prefix(project).items()}
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{prefix.rstrip('.')} {objective.value}" for prefix, objective in stated.items())
        raise InputError(f"workflows that share a fleet have one objective, not several ({listed}): write one into all")
    return next(iter(stated.values()))


def by_prefix(project: AnyProject) -> Mapping[str, Project]:
    """What `--set` paths of a workflow begin with -> the workflow: "" for the only one, else its name and a dot."""
    if isinstance(project, Project):
        return {"": project}
    return {f"{name}.": own for name, own in project.workflows.items()}


def best_options(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The options of the best plan for the project's objective; None if no plan is found whatever is asked for."""
    if stated_objective(project) is Objective.RATE:
        return _highest_rates(project, try_plan, progress)
    return _least_latency(project, try_plan, progress)


def with_options(project: AnyProject, options: tuple[str, ...]) -> AnyProject:
    """The project with further `--set` options, and the cost as objective."""
    own = by_prefix(project)
    overrides = (*project.overrides, *(f"{prefix}objective=cost" for prefix in own), *options)
    return load_any_project(project.directory, overrides, accept_stale=any(one.accept_stale for one in own.values()))


def _highest_rates(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
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


def _scaled(project: AnyProject, factor: float) -> Mapping[tuple[str, str], str]:
    """What the paths of a workflow begin with, and a source of it -> the source's scaled rate as text."""
    return {
        (prefix, name): format_quantity(RATE, factor * source.rate_per_s, DIGITS)
        for prefix, own in by_prefix(project).items()
        for name, source in own.workflow.sources.items()
    }


def _rates_text(project: AnyProject, factor: float) -> str:
    scaled = _scaled(project, factor).items()
    return ", ".join(f"{prefix.replace('.', WORKFLOW_SEPARATOR)}{name} {rate}" for (prefix, name), rate in scaled)


def scaled_rate_options(project: AnyProject, factor: float) -> tuple[str, ...]:
    """The `--set` options for so many times the rates of all sources, which are made of as many more streams."""
    options = [f"{prefix}sources.{name}.rate={rate}" for (prefix, name), rate in _scaled(project, factor).items()]
    for prefix, own in by_prefix(project).items():
        for name, source in own.workflow.sources.items():
            if source.streams is not None:  # more streams, rather than faster ones
                options.append(f"{prefix}sources.{name}.streams={max(1, round(factor * source.streams))}")
    return tuple(options)


def _least_latency(project: AnyProject, try_plan: TryPlan, progress: Progress) -> Best | None:
    """The nearest p99 latency to a target that no plan meets."""
    progress(0, 2, "least p99 latency")
    asked = with_options(project, (f"slo.latency_p99={format_quantity(DURATION, TINY_S)}",))
    nearest_s = try_plan(asked).nearest_p99_s
    if nearest_s is None:
        return None
    option = f"slo.latency_p99={format_quantity(DURATION, nearest_s)}"
    return Best((option,), f"least p99 latency that a plan was found for: {formats.duration(nearest_s)}")
