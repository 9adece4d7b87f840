"""The result of planning a project."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean.documents import AnyProject
from jellybean.planning.deadline.predicted_latency import Judged
from jellybean_solver import NO_ASSIGNMENT, Baseline, Infeasibility, Plan, Problem, Solution


@dataclass(frozen=True)
class Planned:
    """The result of planning a project. `plan` is None if no plan meets the targets; then `reasons` says why.

    `problem` has all forms, whichever the plan has (`as_planned`). `solve_s`: time of the search in seconds.
    """

    problem: Problem
    solution: Solution
    plan: Plan | None
    reasons: tuple[str, ...]
    baselines: tuple[Baseline, ...]
    solve_s: float
    nearest_p99_s: float | None = None  # p99 latency of the fastest rejected plan
    fastest: Plan | None = None  # the plan that meets that p99, with it as target
    judged: Judged | None = None  # the plan's predicted p99 latencies, if it has p99 targets
    cheapest: tuple[Plan, Judged] | None = None  # the cheapest plan, if it was rejected for its p99 latency
    best: str = ""  # what the plan is the best in, if that was searched: its highest rates or least latency
    asked: AnyProject | None = None  # then the project with the options that were found

    @property
    def status(self) -> str:
        """`infeasible`, or the solver's termination: `optimal`, `gap` or `time_limit`."""
        return self.solution.status if self.plan is not None else "infeasible"

    @property
    def infeasibility(self) -> Infeasibility | None:
        return self.solution.infeasibility

    @property
    def comparison(self) -> tuple[tuple[str, float | None, str], ...]:
        """The baselines as (name, USD/h or None if infeasible, note), but for a rule that found nothing to compare."""
        return tuple(
            (baseline.name, baseline.cost_usd_per_h, baseline.note)
            for baseline in self.baselines
            if baseline.status != NO_ASSIGNMENT
        )
