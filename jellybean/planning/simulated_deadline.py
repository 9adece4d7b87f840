"""Searches a plan that meets its p99 latency target if the cheapest plan misses it; every plan found is simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from jellybean.display import formats
from jellybean.planning.predicted_latency import Judged, judged_latency, quick_judgement
from jellybean.planning.simulation import SEEDS
from jellybean.quantities import DURATION, format_quantity, rounded_up
from jellybean_solver import (
    DEFAULT_SETTINGS,
    QUICK_SETTINGS,
    Cuts,
    Deadline,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    SolverError,
    deadline_s,
    deadline_shares,
    solve_cut,
)

SAME = 1e-6  # relative difference below which two costs count as equal


@dataclass(frozen=True, slots=True)
class InTime:
    """A solution whose plan meets its p99 targets in simulation, or, if there are `reasons`, one that does not.

    With `reasons`: `fastest` is the simulated plan nearest to its target; `nearest_p99_s` its p99 latency, None for
    several workflows. `judged`: predicted latencies of the solution's plan, None without a p99 target. `cheapest`: the
    cheapest plan with its latencies, if it was replaced. Quick results may have fewer simulations than a prediction.
    """

    solution: Solution
    reasons: tuple[str, ...] = ()
    nearest_p99_s: float | None = None
    fastest: Plan | None = None
    judged: Judged | None = None
    cheapest: tuple[Plan, Judged] | None = None


class SimulationJudge:
    """Simulates the plans that the solver's search proposes.

    `fastest`: the plan with the smallest `slowness` (p99 latency as a multiple of the target).
    """

    def __init__(self, cheapest: Plan, judged: Judged, most: int) -> None:
        """`cheapest`: the plan that misses its p99 target; `judged`: its latencies; `most`: simulations of a plan."""
        self.most = most
        self.cheapest = self.fastest = cheapest
        self.slowness = self.first_slowness = judged.share

    def __call__(self, plan: Plan) -> float:
        if _same(plan, self.cheapest):
            return self.first_slowness
        judged = quick_judgement(plan, most=self.most)
        if judged is None:
            return 0.0
        if judged.share < self.slowness:
            self.fastest, self.slowness = plan, judged.share
        return min(1.0, judged.share) if judged.kept else max(1.0 + SAME, judged.share)


def in_time(
    problem: Problem, cuts: Cuts, solution: Solution, gap: float, time_limit_s: float | None, *, thorough: bool = True
) -> InTime:
    """Search a solution that meets the p99 target, if the plan of `solution` (the cheapest) misses it in simulation.

    `thorough=False` tries only a few plans, and simulates each once. `time_limit_s` includes the simulations.
    """
    target_s = deadline_s(problem)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    judge_plan = judged_latency if thorough else partial(quick_judgement, most=1)
    judged = judge_plan(solution.plan) if solution.plan is not None and target_s is not None else None
    if solution.plan is None or target_s is None or judged is None or judged.kept:
        return InTime(solution, reasons, judged=judged)
    judge = SimulationJudge(solution.plan, judged, SEEDS if thorough else 1)
    deadline = Deadline(target_s, judge, DEFAULT_SETTINGS if thorough else QUICK_SETTINGS)
    try:
        options = SolveOptions(gap, time_limit_s, time.monotonic, explained=False, deadline=deadline)
        found = solve_cut(problem, cuts, options)
        if found.plan is not None:
            return InTime(found, judged=judge_plan(found.plan), cheapest=(solution.plan, judged))
        reasons = found.infeasibility.reasons if found.infeasibility is not None else ()
    except SolverError as error:
        reasons = (str(error),)
    if thorough:
        return _not_in_time(problem, solution, solution.plan, judged, judge.fastest, target_s, reasons)
    return InTime(solution, reasons or ("no plan in time was found",), None, judge.fastest, judged)


def _not_in_time(
    problem: Problem,
    solution: Solution,
    cheapest: Plan,
    judged: Judged,
    fastest: Plan,
    target_s: float,
    reasons: tuple[str, ...],
) -> InTime:
    """Result without a plan in time: the reasons, and the p99 targets that the fastest simulated plan would meet."""
    nearest = judged_latency(fastest) or judged
    kept = {
        name: rounded_up(DURATION, nearest.share * share * target_s) for name, share in deadline_shares(problem).items()
    }
    paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in kept}
    settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in kept.items())
    verb = "is" if len(kept) == 1 else "are"
    met = f"nearest: {', '.join(settings)} {verb} kept by a plan for {formats.usd(cost_of(fastest))} USD/h"
    late = f"the cheapest plan ({formats.usd(cost_of(cheapest))} USD/h) is too slow: {judged.text}"
    texts = (late, *reasons, f"{met}, the nearest found")
    return InTime(solution, texts, kept.get(""), fastest, judged)


def _same(one: Plan, other: Plan) -> bool:
    """True if two plans are equal except for their optimality certificates and targets."""
    return replace(one, certificate=other.certificate, slo=other.slo) == other


def cost_of(plan: Plan) -> float:
    """Cost of a plan in USD per hour, workers and traffic: the key by which callers take the cheapest of several."""
    return plan.cost.total_usd_per_h
