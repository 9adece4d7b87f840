"""What becomes of an alternative whose cheapest plan breaks a p99 latency, as `explain` asks it of dozens of problems.

The plan in question has found out how much room its queues need. An alternative is first given half of that, all, and
more: a solve and a simulation each, where a search of its own takes a hundred. Only where all are late it is searched
for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from jellybean.planning.project_plan import more_accurate, settle
from jellybean.planning.simulated_deadline import cost_of
from jellybean.planning.simulation import latency_breach
from jellybean_solver import (
    DEFAULT_GAP,
    LEAST_SHARE,
    Certificate,
    DeadlineResult,
    Plan,
    Problem,
    Room,
    Solution,
    SolverError,
    evaluate,
    in_own_figures,
    solve,
    termination_of,
    with_headroom,
)

PARTS = (0.5, 1.0, 1.7)  # of the room that the plan in question leaves


class Settling:
    """Called as `ResolveSettings.keep_deadline`, first about the plan in question, which is `plan` from then on."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def __call__(
        self, problem: Problem, cheapest: Solution, late: bool, time_limit_s: float | None, thorough: bool
    ) -> DeadlineResult:
        if not late:
            found = cheapest if time_limit_s is not None else more_accurate(problem, {}, cheapest)
            self.plan = found.plan if thorough else self.plan
            return DeadlineResult(found)
        end_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        if not thorough and (alike := self._with_like_room(problem, cheapest, end_s)) is not None:
            return DeadlineResult(alike)
        settled = settle(problem, {}, cheapest, DEFAULT_GAP, _left_s(end_s), thorough=thorough)
        if settled.solution.plan is None or settled.reasons:
            return DeadlineResult(None, settled.fastest)
        self.plan = settled.solution.plan if thorough else self.plan
        return DeadlineResult(settled.solution)

    def _with_like_room(self, problem: Problem, cheapest: Solution, end_s: float | None) -> Solution | None:
        for room in self._rooms(problem):
            if (left_s := _left_s(end_s)) == 0.0:
                return None
            try:
                changed = with_headroom(problem, room)
                found = solve(changed, explained=False, time_limit_s=left_s, clock=time.monotonic).plan
            except SolverError:
                return None
            if found is None:
                continue
            plan = in_own_figures(problem, found)
            if not evaluate(problem, plan).complaints and _in_time(plan):
                return _certified(plan, cheapest)
        return None

    def _rooms(self, problem: Problem) -> Iterator[Room]:
        if self.plan is None:
            return
        loads: dict[str, float] = {}
        for worker in self.plan.workers:
            loads[worker.pool] = max(loads.get(worker.pool, 0.0), worker.load)
        most = max(loads.values())
        for part in PARTS:
            left = {
                pool.name: 1.0 - min(1.0, loads.get(pool.name, most) / problem.utilisation) for pool in problem.pools
            }
            yield Room({pool: max(LEAST_SHARE, 1.0 - part * own) for pool, own in left.items()})


def _left_s(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - time.monotonic())


def _in_time(plan: Plan) -> bool:
    """One seed refuses quickly; one lucky seed accepts nothing."""
    return latency_breach(plan, seeds=1) is None and latency_breach(plan) is None


def _certified(plan: Plan, cheapest: Solution) -> Solution:
    """By what is proven of plans that need not keep the p99."""
    cost = cost_of(plan)
    bound = min(cost, cheapest.certificate.bound if cheapest.certificate is not None else 0.0)
    certificate = Certificate.of(cost, bound, termination_of(cost, bound, out_of_time=False))
    plan = replace(plan, certificate=certificate)
    return Solution(certificate.termination, plan, None, cheapest.selections_tried, certificate)
