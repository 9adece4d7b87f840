"""The change from a running plan of least cost, penalties of soft p99 latencies and migration together."""

from __future__ import annotations

import time
from dataclasses import replace

from jellybean.planning.deadline.predicted_latency import predicted_p99
from jellybean.planning.deadline.simulation_judge import Progress
from jellybean.planning.deadline.soft_plan import Trial, best_with_penalties, planned_anew
from jellybean.planning.deadline.soft_targets import latency_penalty
from jellybean_solver import (
    DEFAULT_GAP,
    Certificate,
    Clock,
    Plan,
    Problem,
    Replanned,
    SearchSettings,
    Solution,
    Termination,
    change,
    is_by_ways,
    replan,
    with_change,
)


def change_with_penalties(
    problem: Problem,
    before: Plan,
    decision: Replanned,
    *,
    gap: float | None,
    clock: Clock,
    progress: Progress,
) -> Replanned:
    """The decision of the least cost, penalties and migration, from that without regard to soft targets on.

    The best plan of `decision` keeps the hard targets. Where plans are found by ways, migration is minimised together
    with the cost for each target; where they are not, it is added to what plans cost.
    """
    if decision.best is None or decision.maximises_accuracy:
        return decision
    settings, horizon_h = decision.settings, decision.settings.horizon_h

    def value(plan: Plan) -> float:
        return plan.counted_usd_per_h + change(before, plan, settings.prices).total_usd / horizon_h

    def solution(found: Replanned) -> Solution:
        plan, bound = found.best, found.bound_usd / horizon_h
        if plan is not None:
            plan = replace(plan, certificate=Certificate.of(value(plan), bound, Termination.GAP))
        return Solution(plan, found.infeasibility, found.tried)

    def beside(trial: Trial) -> Solution:
        search = SearchSettings(gap, trial.limit_s, time.monotonic, deadline=trial.deadline)
        return solution(replan(trial.problem, before, settings, search))

    cheapest = solution(decision)
    anew = planned_anew(replace(cheapest, plan=None), DEFAULT_GAP if gap is None else gap)
    solve = beside if is_by_ways(problem) else anew
    found = best_with_penalties(problem, cheapest, solve, gap=gap, clock=clock, progress=progress, value=value)
    if found is None:
        return decision
    plan, bound_usd = found.plan, found.plan.certificate.bound * horizon_h
    running_s = {name: p99.p99_s for name, p99 in predicted_p99(decision.running).items()}
    late_usd_per_h = latency_penalty(decision.running, running_s), sum(found.judged.penalties_usd_per_h.values())
    return with_change(decision, plan, change(before, plan, settings.prices), bound_usd, late_usd_per_h)
