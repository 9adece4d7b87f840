"""The result of planning a project."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jellybean.documents import AnyProject
from jellybean.planning.predicted_latency import Judged
from jellybean_solver import (
    NO_ASSIGNMENT,
    Baseline,
    Infeasibility,
    Plan,
    Problem,
    Solution,
    in_true_prices,
    to_document,
)


@dataclass(frozen=True)
class Planned:
    """The result of planning a project. With `reasons` no plan meets the targets, also if the solution has one.

    `problem` has all forms, whichever the plan has (`as_planned`). `solve_s`: time of the search in seconds. Quick
    results of a part of the search may be from fewer simulations.
    """

    problem: Problem
    solution: Solution
    reasons: tuple[str, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    solve_s: float = 0.0
    nearest_p99_s: float | None = None  # the least p99 target that a plan was found for, if none meets the stated one
    fastest: Plan | None = None  # the plan for it, or the fastest one that was seen
    judged: Judged | None = None  # the solution's predicted p99 latencies, if it has p99 targets
    cheapest: Judged | None = None  # the cheapest plan, if it was replaced for its p99 latency
    best: str = ""  # what was searched: highest rates, least latency, or least cost with penalties
    options: tuple[str, ...] = ()  # the `--set` options that the plan answers
    notes: tuple[str, ...] = ()  # what is not known or cannot be done, as sentences for the user

    @property
    def plan(self) -> Plan | None:
        """The plan; None if none meets the targets."""
        return None if self.reasons else self.solution.plan

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The document of the plan that is to be served; None if none meets the targets."""
        return None if self.plan is None else to_document(self.plan)

    @property
    def is_new(self) -> bool:
        """False if a running plan is kept."""
        return True

    @property
    def status(self) -> str:
        """`infeasible`, or the solver's termination: `optimal`, `gap` or `time_limit`."""
        return self.solution.status if self.plan is not None else "infeasible"

    @property
    def infeasibility(self) -> Infeasibility | None:
        return self.solution.infeasibility

    def with_plan(self, plan: Plan) -> Planned:
        """The same with another plan."""
        return replace(self, solution=replace(self.solution, plan=plan))

    def of(self, project: AnyProject) -> Planned:
        """The same in the prices of money, as a plan of the project and its options."""
        plan, fastest, cheapest = self.plan, self.fastest, self.cheapest
        planned = replace(
            self,
            fastest=None if fastest is None else in_true_prices(self.problem, fastest),
            cheapest=None if cheapest is None else replace(cheapest, plan=in_true_prices(self.problem, cheapest.plan)),
            options=project.overrides,
        )
        if plan is None:
            return planned
        return planned.with_plan(replace(in_true_prices(self.problem, plan), overrides=project.overrides))

    @property
    def comparison(self) -> tuple[tuple[str, float | None, str], ...]:
        """The baselines as (name, USD/h or None if infeasible, note), but for a rule that found nothing to compare."""
        return tuple(
            (baseline.name, baseline.cost_usd_per_h, baseline.note)
            for baseline in self.baselines
            if baseline.status != NO_ASSIGNMENT
        )
