"""The plan of least cost and penalties of workflows with soft p99 latencies.

Hard targets are tried in the place of the soft ones: shares of the way from the soft targets to what the cheapest plan
has, one share for all workflows. No plan for a share costs less than the lower bound of the search for it, and what is
later than a share counts at least its penalty: this is the certificate.

Each plan that a search sees is a candidate, by the p99 latencies of one simulation, which ends once the plan is certain
to be worse than the best one. What is stated of the plan that is chosen is from all simulations of a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from jellybean.display import formats
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import (
    Judged,
    Targets,
    check_latency,
    judge,
    judged_latency,
    judged_so_far,
    simulated_p99_s,
)
from jellybean.planning.simulated_deadline import Solve, with_targets_of
from jellybean.planning.soft_targets import soft_targets
from jellybean.quantities import DURATION, rounded_up
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Certificate,
    Clock,
    Deadline,
    OutOfTimeError,
    Plan,
    Problem,
    Progress,
    Solution,
    SolverError,
    Termination,
    termination_of,
    with_deadlines,
)

TOLERANCE = 0.005  # relative: ranges that save no more are left; less asks for more plans in time
SHARES = 4  # tried; each asks for a plan in time, which takes seconds
TARGET_SHARE = 0.4  # of the time left for each target; later ones refine what earlier ones found
LEAST_S = 1.0  # no search is begun with less time: a plan in time takes several simulations
MOST_CONFIRMED = 3  # plans, the best by one simulation first, of which all are made
LATE = 1.0 + 1e-6  # the least multiple of a limit that is above it
# A plan is judged by whether it may be the best one, so that what is late for that says nothing about a lower bound.
SOFT_SETTINGS = replace(DEFAULT_SETTINGS, counted=0)


class SoftSearch:
    """Divides the range of shares from the `cheapest` plan on, which counts `value` beside its p99 latencies."""

    def __init__(
        self,
        problem: Problem,
        cheapest: Solution,
        solve: Solve,
        clock: Clock,
        progress: Progress,
        *,
        tolerance: float = TOLERANCE,
        value: Callable[[Plan], float] = lambda plan: plan.counted_usd_per_h,
        names: Collection[str] | None = None,
    ) -> None:
        """`names`: the workflows with soft targets that are planned; None: all. The others stay as they are."""
        plan, proof = cheapest.plan, cheapest.certificate
        if plan is None or proof is None:
            raise AssertionError("there is a cheapest plan")
        self.problem, self.solve, self.clock, self.progress = problem, solve, clock, progress
        self.tolerance, self.counted, self.soft = tolerance, value, soft_targets(problem)
        self.known: list[tuple[float, Plan]] = []  # plans that were seen, each with its value and penalties
        self.cheapest, self.out_of_time = plan, proof.termination == Termination.TIME_LIMIT
        p99_s, _ = simulated_p99_s(plan)
        self._offer(plan, p99_s)
        late_s = {name: p99_s.get(name, 0.0) - own.p99_s for name, own in self.soft.items()}
        self.late_s = {
            name: own_s for name, own_s in late_s.items() if own_s > 0.0 and (names is None or name in names)
        }
        self.tried: dict[float, float] = {}  # share -> a lower bound on what plans count that are no later
        self.least = proof.bound

    def run(self) -> None:
        """Try shares of the way to where nothing can save more than the tolerance, the soft targets first."""
        for number in range(SHARES if self.late_s else 0):
            last = (self.worth - self.counted(self.cheapest)) / max(self.penalty(1.0), 1e-9)
            share, left_s = min(1.0, last) * number / SHARES, self.clock.left()
            if number and share <= max(self.tried):
                continue
            if left_s is not None and left_s < LEAST_S:
                self.out_of_time = True
                return
            self.tried[share] = 0.0
            targets_s = {name: self.soft[name].p99_s + share * own_s for name, own_s in self.late_s.items()}
            self.tried[share] = self._bound_of({name: rounded_up(DURATION, own) for name, own in targets_s.items()})

    def penalty(self, share: float) -> float:
        """The least that plans count which are later than a share: one workflow at least is."""
        late = (own_s * self.soft[name].usd_per_h_per_s for name, own_s in self.late_s.items())
        return share * min(late, default=0.0)

    @property
    def least_value(self) -> float:
        """The value of the best plan, in USD per hour."""
        return min(value for value, _ in self.known)

    @property
    def worth(self) -> float:
        """The value below which a plan saves more than the tolerance."""
        return self.least_value * (1.0 - self.tolerance)

    @property
    def bound(self) -> float:
        """A lower bound on cost and penalties of every plan, which is later than one share, not than the next."""
        later = sorted(self.tried.items())
        shares = [0.0, *(share for share, _ in later)]
        bounds = [*(bound for _, bound in later), self.least]
        return min(self.least_value, *(own + self.penalty(share) for share, own in zip(shares, bounds, strict=True)))

    def _bound_of(self, targets_s: Targets) -> float:
        """Search the cheapest plan for hard targets; a lower bound on what all plans for them count."""
        within = ", ".join(f"{name} {formats.duration(own_s)}".strip() for name, own_s in targets_s.items())

        def tell(done: float, most: float) -> None:
            so_far = f"least cost and penalty so far {formats.usd(self.least_value)} USD/h"
            part = len(self.tried) - 1 + done / max(most, 1e-9)
            self.progress(part, SHARES, f"p99 within {within}: {so_far}")

        hard = with_deadlines(self.problem, targets_s)
        deadline = Deadline(hard.deadline_s or 0.0, self._judge, SOFT_SETTINGS, tell, lambda: self.worth)
        try:
            solution = self.solve(hard, deadline, self.clock.share(TARGET_SHARE).left())
        except SolverError as error:
            self.out_of_time = self.out_of_time or isinstance(error, OutOfTimeError)
            return 0.0
        plan, proof, refused = solution.plan, solution.certificate, solution.infeasibility
        if plan is None or proof is None:
            self.out_of_time = self.out_of_time or self.clock.left() is not None
            return 0.0 if refused is None or refused.breaches else refused.least_usd_per_h
        self.out_of_time = self.out_of_time or proof.termination == Termination.TIME_LIMIT
        plan = with_targets_of(self.problem, plan)
        self._offer(plan, simulated_p99_s(plan)[0])
        return proof.bound

    def _offer(self, plan: Plan, p99_s: Targets) -> None:
        """Record a plan that was seen."""
        late = sum(own.penalty(p99_s.get(name, 0.0)) for name, own in self.soft.items())
        self.known.append((self.counted(plan) + late, plan))

    def _judge(self, plan: Plan) -> float:
        """Implements `Judge`: the p99 latency as a multiple of the one at which the plan is too late to be chosen.

        That is the target tried, or, if it is less, the one at which its value is that of the best plan.
        """
        tried = plan.slo_by_workflow
        if all(tried[name].latency_p99_s is None for name in self.soft if name in tried):
            judged = judge(plan)  # what is left of it after a loss
            return 0.0 if judged is None else judged.share
        stated = with_targets_of(self.problem, plan)
        spare = max(0.0, self.worth - self.counted(stated))
        limits_s = {name: slo.latency_p99_s for name, slo in tried.items() if slo.latency_p99_s is not None}
        for name, soft in self.soft.items():
            if name in tried:
                limits_s[name] = min(limits_s.get(name, math.inf), soft.p99_s + spare / soft.usd_per_h_per_s)
        p99_s, is_whole = simulated_p99_s(plan, 0, limits_s)
        late = max(p99_s[name] / limit_s for name, limit_s in limits_s.items())
        if not is_whole or check_latency(stated, self.problem) is not None:
            return max(LATE, late)
        if not self.problem.is_for_ways:  # those plans may be told apart by more
            self._offer(stated, p99_s)
        return late

    def result(self, found: Planned) -> Planned:
        """The best plan by all simulations, with the certificate of cost and penalties together.

        `found`: what is known of the cheapest plan.
        """
        confirmed: list[tuple[bool, float, Judged]] = []
        for seen, plan in sorted(self.known, key=lambda one: one[0])[:MOST_CONFIRMED]:
            if any(not is_late and value <= seen for is_late, value, _ in confirmed):
                break
            judged = judged_latency(plan) or Judged(plan, {}, {})  # it leaves out who has a target
            value = self.counted(plan) + sum(judged.penalties_usd_per_h.values())
            confirmed.append((not judged.kept, value, judged))
        _, value, judged = min(confirmed, key=lambda one: one[:2])
        plan = judged.plan
        bound = min(value, self.bound)
        certificate = replace(
            Certificate.of(value, bound, termination_of(value, bound, out_of_time=self.out_of_time)),
            penalty_usd_per_h=plan.accuracy_penalty_usd_per_h + sum(judged.penalties_usd_per_h.values()),
            forgone_usd_per_h=plan.forgone_usd_per_h,
            keeps=plan.certificate.keeps,
        )
        cheapest = found.cheapest if plan is self.cheapest else judged_so_far(self.cheapest) or found.cheapest
        plan = replace(plan, certificate=certificate)
        tried = formats.count(len(self.tried), "p99 target") if self.tried else ""
        best = f"least cost and penalty of the cheapest plans without and with {tried}" if tried else ""
        return replace(found.with_plan(plan), judged=replace(judged, plan=plan), cheapest=cheapest, best=best)


def reached_s(judged: Judged) -> Mapping[str, float]:
    """Workflow with a soft target -> that, or the p99 latency of the plan if it is above it."""
    return {name: max(judged.targets_s[name], judged.p99[name].p99_s) for name in judged.penalties_usd_per_h}
