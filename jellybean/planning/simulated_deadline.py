"""A plan that keeps the p99 latency, where the cheapest does not: the solver proposes, the simulator decides.

The solver is asked by its own estimate of latency for plans under shares of the target, because simulated queues may be
longer or shorter than it says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean.planning.simulation import Judged, judged_latency
from jellybean.quantities import DURATION, format_quantity, rounded_up
from jellybean_solver import (
    LATENCY_TOLERANCE,
    Certificate,
    Cuts,
    OutOfTimeError,
    Plan,
    Problem,
    Solution,
    SolverError,
    Termination,
    deadline_s,
    deadline_shares,
    least_latency_s,
    solve_cut,
    termination_of,
)

QUICK = (1.0, 0.7)  # of the p99 latency, where there is little time
TIGHTER = (1.0, 0.8, 0.6)  # of the p99 latency, asked of the solver in turn: simulated queues may be longer
LONGER = (2.0, 1.5, 1.2)  # likewise, where the gap is wide: simulated queues may be shorter, too
FAR, SAME = 0.05, 1e-6  # gaps from which on that is tried; costs that are the same
LOOSER = (0.2, 0.5, 0.8)  # of the way from the target to the cheapest plan's p99, by ratio


@dataclass(frozen=True, slots=True)
class InTime:
    """A solution whose plan keeps the p99 latency in simulation; or one that does not, with the `reasons`.

    Then `fastest` is the plan seen that comes nearest to it, `nearest_p99_s` the p99 of an only workflow with it.
    `judged`: the solution's plan, None where nothing is asked of it; `cheapest`: a plan that it is not, for its p99.
    """

    solution: Solution
    reasons: tuple[str, ...] = ()
    nearest_p99_s: float | None = None
    fastest: Plan | None = None
    judged: Judged | None = None
    cheapest: tuple[Plan, Judged] | None = None


def in_time(
    problem: Problem, cuts: Cuts, solution: Solution, gap: float, time_limit_s: float | None, *, thorough: bool = True
) -> InTime:
    """The problem's solution that keeps its p99 latency, given the one that need not.

    Not `thorough`: in a third of the time; a plan that only simulation finds fast enough may be missed.
    `time_limit_s` is for all solves together: a first one may take it all, later ones what is left.
    """
    end_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    target_s = deadline_s(problem)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    judged = judged_latency(solution.plan) if solution.plan is not None and target_s is not None else None
    if solution.plan is None or target_s is None or judged is None or judged.kept:
        return InTime(solution, reasons, judged=judged)

    def solved(p99_s: float) -> Solution:
        left_s = None if time_limit_s is None else end_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise OutOfTimeError(f"time ended before plans under {format_quantity(DURATION, p99_s)} were sought")
        return solve_cut(problem, cuts, gap=gap, time_limit_s=left_s, clock=time.monotonic, p99_s=p99_s)

    search = _SimulatedInTime(solved, target_s, judged.share, solution.plan, solution.plan.certificate.bound)
    if not cuts and least_latency_s(problem) > target_s * (1 + LATENCY_TOLERANCE):
        found = search.run((1.0,), (), LOOSER if thorough else ())
    elif thorough:
        found = search.run(TIGHTER, LONGER if time_limit_s is None else (), LOOSER)
    else:
        found = search.run(QUICK, (), ())
    if found is not None:
        return InTime(found, judged=search.judged, cheapest=(solution.plan, judged))
    nearest = search.nearest
    kept = {name: rounded_up(DURATION, nearest * share * target_s) for name, share in deadline_shares(problem).items()}
    paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in kept}
    settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in kept.items())
    verb = "is" if len(kept) == 1 else "are"
    dear = f"{cost_of(search.fastest):.4g} USD/h"
    told = f"nearest: {', '.join(settings)} {verb} kept by a plan for {dear}, the nearest found"
    late = f"the cheapest plan ({cost_of(solution.plan):.4g} USD/h) is too slow: {judged.text}"
    return InTime(solution, (late, *(reasons or search.reasons), told), kept.get(""), search.fastest, judged)


class _SimulatedInTime:
    """Asks the solver for plans under shares of a p99 and simulates them. `nearest`: the least share that one keeps.

    `bound`: no plan that keeps the p99 costs less. A search under less than all of it proves nothing for all of it.
    """

    def __init__(
        self, solved: Callable[[float], Solution], target_s: float, nearest: float, fastest: Plan, bound: float
    ) -> None:
        self.solved, self.target_s, self.nearest, self.fastest = solved, target_s, nearest, fastest
        self.bound = bound
        self.first = nearest
        self.late = [fastest]  # plans known to break it
        self.reasons: tuple[str, ...] = ()
        self.hopeless = False  # no plan keeps it even when nothing waits
        self.judged: Judged | None = None  # the plan found last that keeps it

    def run(self, tighter: tuple[float, ...], longer: tuple[float, ...], looser: tuple[float, ...]) -> Solution | None:
        """The cheapest found that keeps the p99."""
        best: Solution | None = None
        for share in tighter:
            if (best := self._kept(share)) is not None or self.hopeless:
                break
        if best is None or best.certificate is None or best.certificate.gap > FAR:
            below = cost_of(best.plan) * (1 - SAME) if best is not None and best.plan is not None else math.inf
            best = next(
                (found for share in longer if (found := self._kept(share, below, near=False)) is not None), best
            )
        if best is None:
            more = (self.first**share for share in looser)
            best = next((found for share in more if (found := self._kept(share)) is not None), None)
        return best

    def _kept(self, share: float, below_usd_per_h: float = math.inf, *, near: bool = True) -> Solution | None:
        """A solution under a share of the p99 whose plan keeps all of it, and costs less than that.

        `near`: else remember what it keeps; not where asking for just that would not find it again.
        """
        try:
            found = self.solved(share * self.target_s)
        except SolverError as error:
            self.reasons = self.reasons or (str(error),)
            return None
        if share == 1.0:
            self.bound = max(self.bound, _bound(found))
            self.hopeless = found.infeasibility is not None and found.infeasibility.least_usd_per_h == math.inf
        if found.plan is None:
            self.reasons = self.reasons or (found.infeasibility.reasons if found.infeasibility is not None else ())
            return None
        if cost_of(found.plan) >= below_usd_per_h or any(_same(found.plan, late) for late in self.late):
            return None
        judged = judged_latency(found.plan)
        if judged is None or judged.kept:
            self.judged = judged
            return self._certified(found, found.plan)
        self.late.append(found.plan)
        if near and judged.share < self.nearest:
            self.nearest, self.fastest = judged.share, found.plan
        return None

    def _certified(self, found: Solution, plan: Plan) -> Solution:
        """A plan by what is proven of all that keep the p99."""
        cost = cost_of(plan)
        bound = min(self.bound, cost)
        late = plan.certificate.termination == Termination.TIME_LIMIT
        certificate = Certificate.of(cost, bound, termination_of(cost, bound, out_of_time=late))
        plan = replace(plan, certificate=certificate)
        return replace(found, status=certificate.termination, plan=plan, certificate=certificate)


def _bound(found: Solution) -> float:
    """What every plan costs at least that keeps the latency asked for; -inf where that is not known."""
    if found.plan is not None:
        return found.plan.certificate.bound
    least = found.infeasibility.least_usd_per_h if found.infeasibility is not None else -math.inf
    return least if math.isfinite(least) else -math.inf


def _same(one: Plan, other: Plan) -> bool:
    """Whether two plans run alike, whatever is proven of them."""
    return replace(one, certificate=other.certificate) == other


def cost_of(plan: Plan) -> float:
    return plan.cost.total_usd_per_h
