"""Searches a plan that meets its p99 latency target if the cheapest plan misses it; every plan found is simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from jellybean.display import formats
from jellybean.planning.nearest_latency import Nearest, Progress, SimulationJudge, nearest_latency, plans
from jellybean.planning.predicted_latency import Judged, judged_latency, quick_judgement
from jellybean.planning.simulation import SEEDS
from jellybean.quantities import DURATION, format_quantity, rounded_up
from jellybean_solver import (
    DEFAULT_SETTINGS,
    QUICK_SETTINGS,
    Certificate,
    Cuts,
    Deadline,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    deadline_s,
    deadline_shares,
    least_latency_s,
    limited,
    solve_cut,
)


@dataclass(frozen=True, slots=True)
class InTime:
    """A solution whose plan meets its p99 targets in simulation, or, if there are `reasons`, one that does not.

    With `reasons`: `fastest` is the plan of least simulated p99; `nearest_p99_s` its p99 latency, None for
    several workflows. `judged`: predicted latencies of the solution's plan, None without a p99 target. `cheapest`: the
    cheapest plan with its latencies, if it was replaced. Quick results may have fewer simulations than a prediction.
    """

    solution: Solution
    reasons: tuple[str, ...] = ()
    nearest_p99_s: float | None = None
    fastest: Plan | None = None
    judged: Judged | None = None
    cheapest: tuple[Plan, Judged] | None = None


def in_time(
    problem: Problem,
    cuts: Cuts,
    solution: Solution,
    gap: float,
    time_limit_s: float | None,
    *,
    thorough: bool = True,
    progress: Progress = lambda done, total, label: None,
) -> InTime:
    """Search a solution that meets the p99 target, if the plan of `solution` (the cheapest) misses it in simulation.

    If none meets it, the plan of least p99 is sought. `thorough=False` tries only a few plans, simulates each once and
    leaves the second search out. `time_limit_s` includes the simulations.
    """
    target_s = deadline_s(problem)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    judge_plan = judged_latency if thorough else partial(quick_judgement, most=1)
    judged = judge_plan(solution.plan) if solution.plan is not None and target_s is not None else None
    if solution.plan is None or target_s is None or judged is None or judged.kept:
        return InTime(solution, reasons, judged=judged)
    clock = limited(time_limit_s, time.monotonic)
    judge = SimulationJudge(solution.plan, judged, SEEDS if thorough else 1)

    def tried(done: float, most: float) -> None:
        progress(done, 2 * most, judge.nearest(target_s))

    deadline = Deadline(target_s, judge, DEFAULT_SETTINGS if thorough else QUICK_SETTINGS, tried)
    try:
        options = SolveOptions(gap, time_limit_s, time.monotonic, explained=False, deadline=deadline)
        found = solve_cut(problem, cuts, options)
        if found.plan is not None:
            return InTime(found, judged=judge_plan(found.plan), cheapest=(solution.plan, judged))
        reasons = found.infeasibility.reasons if found.infeasibility is not None else ()
    except SolverError as error:
        reasons = (str(error),)
    if not thorough:
        return InTime(solution, reasons or ("no plan in time was found",), None, judge.fastest, judged)

    def half(done: float, total: float, label: str) -> None:
        progress(total + done, 2 * total, label)

    nearest = nearest_latency(problem, cuts, judge, target_s, gap, clock.left(), half)
    fastest = judged_latency(nearest.plan) or judged
    if fastest.kept:
        cost, bound = cost_of(nearest.plan), cost_of(solution.plan)
        proof = solution.certificate or solution.plan.certificate
        certificate = Certificate.of(cost, min(bound, proof.bound), Termination.GAP)
        kept = replace(nearest.plan, certificate=certificate)
        better = replace(solution, status=certificate.termination, plan=kept, certificate=certificate)
        return InTime(better, judged=fastest, cheapest=(solution.plan, judged))
    return _not_in_time(problem, cuts, solution, judged, nearest, fastest, reasons)


def _not_in_time(
    problem: Problem,
    cuts: Cuts,
    solution: Solution,
    judged: Judged,
    nearest: Nearest,
    fastest: Judged,
    reasons: tuple[str, ...],
) -> InTime:
    """Result without a plan in time: the reasons, and the p99 targets that the plan of least simulated p99 meets.

    `judged`: latencies of the cheapest plan; `fastest`: those of the nearest.
    """
    target_s = deadline_s(problem) or 0.0
    kept = {
        name: rounded_up(DURATION, fastest.share * share * target_s) for name, share in deadline_shares(problem).items()
    }
    paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in kept}
    settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in kept.items())
    verb = "is" if len(kept) == 1 else "are"
    late = f"the cheapest plan ({formats.usd(cost_of(judged.plan))} USD/h) is too slow: {judged.text}"
    known = f"the fastest of {plans(nearest.simulated)} simulated; other plans may be faster or cheaper"
    if nearest.ended_by:
        known += f", as {nearest.ended_by} ended the search"
    elif not cuts and not problem.workflows:
        known += f"; below {formats.duration(least_latency_s(problem))} there is none, even with zero queueing delay"
    cost = formats.usd(cost_of(nearest.plan))
    met = f"nearest found: {', '.join(settings)} {verb} kept by a plan for {cost} USD/h ({known})"
    return InTime(solution, (late, *reasons, met), kept.get(""), nearest.plan, judged)


def cost_of(plan: Plan) -> float:
    """Cost of a plan in USD per hour, workers and traffic: the key by which callers take the cheapest of several."""
    return plan.cost.total_usd_per_h
