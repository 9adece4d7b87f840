"""Decides by simulation which plans of a deadline search meet their p99 targets, and remembers the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jellybean.display import formats
from jellybean.planning.deadline.predicted_latency import Judged, quick_judgement
from jellybean.planning.simulation import SEEDS
from jellybean.quantities import DURATION, rounded_up
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Deadline,
    Judge,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    deadline_s,
    deadline_shares,
    solve_with,
)

SAME = 1e-6  # relative difference below which two costs or latencies count as equal
FIRST_IN_TIME = replace(
    DEFAULT_SETTINGS, improvements=0, fleet_improvements=0, counted=0
)  # end at the first plan in time

Progress = Callable[[float, float, str], None]  # progress callback with the arguments done, total, label


class SimulationJudge:
    """Simulates plans that a solver's search proposes, and compares them with the targets that they state.

    `fastest`: the plan of least p99 latency, `fastest_s` in seconds (of the workflow with the longest target; with
    several, the largest over `shares`). `simulated`: how many plans.
    """

    def __init__(self, shares: Mapping[str, float], judged: Judged) -> None:
        """`shares`: workflow -> its target as a share of the longest; `judged`: latencies of the cheapest plan."""
        self.shares = shares
        self.fastest = judged.plan
        self.fastest_s = self.p99_s({name: p99.p99_s for name, p99 in judged.p99.items()})
        self.simulated = 1

    def __call__(self, plan: Plan, most: int = SEEDS) -> float:
        """The plan's p99 latency as a multiple of its target (of several, the largest multiple).

        `most`: most simulations of the plan.
        """
        judged = quick_judgement(plan, most=most)
        if judged is None:
            return 0.0
        self.simulated += 1
        p99_s = self.p99_s({name: p99.p99_s for name, p99 in judged.p99.items()})
        if p99_s < self.fastest_s:
            self.fastest, self.fastest_s = plan, p99_s
        return _multiple(judged)

    def p99_s(self, by_workflow: Mapping[str, float]) -> float:
        """p99 latency in seconds on the scale of the longest target; workflows that are left out have none."""
        return max(
            (by_workflow[name] / share for name, share in self.shares.items() if name in by_workflow), default=0.0
        )

    @property
    def summary(self) -> str:
        """What is known so far, as a sentence."""
        cost = formats.usd(self.fastest.cost.total_usd_per_h)
        p99 = formats.duration(self.fastest_s)
        return f"least p99 so far {p99} for {cost} USD/h ({plans(self.simulated)} simulated)"


def multiple_of_target(plan: Plan) -> float:
    """The plan's p99 latency as a multiple of its target, by simulation; 0 without a target."""
    judged = quick_judgement(plan)
    return 0.0 if judged is None else _multiple(judged)


def _multiple(judged: Judged) -> float:
    """At most 1 if the targets are kept, above it if not."""
    return min(1.0, judged.share) if judged.kept else max(1.0 + SAME, judged.share)


def solve_in_time(problem: Problem, options: SolveOptions, judge: Judge) -> Solution:
    """The cheapest plan that meets the problem's own p99 targets by the judge.

    `options` may have a deadline, whose effort and progress are used. SolverError if time ends before a plan was found.
    """
    given = options.deadline or Deadline(0.0)
    deadline = replace(given, p99_s=deadline_s(problem) or 0.0, judge=judge)
    return solve_with(problem, replace(options, explained=False, deadline=deadline))


def with_longest_target(problem: Problem, seconds: float) -> Problem:
    """The problem with its longest p99 target set to `seconds`, and the others scaled alike.

    Rounded up as `--set` options are printed, so that the option gives the same problem.
    """
    targets_s = {name: rounded_up(DURATION, share * seconds) for name, share in deadline_shares(problem).items()}
    if not problem.workflows:
        return replace(problem, slo=replace(problem.slo, latency_p99_s=targets_s[""]))
    workflows = tuple(
        replace(workflow, slo=replace(workflow.slo, latency_p99_s=targets_s.get(workflow.name)))
        for workflow in problem.workflows
    )
    return replace(problem, workflows=workflows)


def with_targets_of(problem: Problem, plan: Plan) -> Plan:
    """The plan, with the targets of the problem in place of its own."""
    slos = {workflow.name: workflow.slo for workflow in problem.workflows}
    workflows = tuple(replace(workflow, slo=slos[workflow.name]) for workflow in plan.workflows)
    return replace(plan, slo=problem.slo, workflows=workflows)


def plans(count: int) -> str:
    """`1 plan`, `9 plans`."""
    return formats.count(count, "plan")
