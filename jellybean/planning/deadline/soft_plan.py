"""The plan of least cost and penalties of workflows with soft p99 latencies.

Hard targets are tried in the place of the soft ones (`soft_search`), with the search that finds plans in time.
Each plan that it sees is a candidate, by the p99 latencies of one simulation, which ends once the plan is certain to
be worse than the best one. What is stated of the plan that is chosen is from all simulations of a prediction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from jellybean.display import formats
from jellybean.planning.deadline.after_losses import breach_after_loss
from jellybean.planning.deadline.predicted_latency import (
    Judged,
    first_p99_s,
    judged_latency,
    judged_so_far,
    latency_targets,
    quick_judgement,
)
from jellybean.planning.deadline.simulation_judge import (
    SAME,
    Progress,
    multiple_of_target,
    solve_in_time,
    with_targets_of,
)
from jellybean.planning.deadline.soft_search import (
    TOLERANCE,
    Candidate,
    NoPlan,
    SoftOutcome,
    SoftSearch,
    SoftTarget,
    Targets,
)
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Certificate,
    Clock,
    Deadline,
    Judge,
    OutOfTimeError,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    deadline_s,
    has_many_workflows,
    least_latency_s,
    termination_of,
    with_deadlines,
)

TARGET_SHARE = 0.4  # of the time left for each target; later ones refine what earlier ones found
LEAST_S = 1.0  # no search is begun with less time: a plan in time takes several simulations
# A plan is judged by whether it may be the best one, so that what is late for that says nothing about a lower bound.
SOFT_SETTINGS = replace(DEFAULT_SETTINGS, counted=0)
MOST_CONFIRMED = 3  # plans, the best by one simulation first, of which all are made


@dataclass(frozen=True, slots=True)
class Trial:
    """A problem with hard targets in the place of soft ones, and how plans for it are judged.

    `below`: USD per hour from which on a plan is no better than the best one, whatever its latency.
    """

    problem: Problem
    judge: Judge
    below: Callable[[], float]
    limit_s: float | None
    advance: Callable[[float, float], None]

    @property
    def deadline(self) -> Deadline:
        """The longest of its targets, with the effort that the search is worth."""
        longest_s = deadline_s(self.problem) or 0.0
        return Deadline(longest_s, self.judge, SOFT_SETTINGS, self.advance, self.below)


SolveTrial = Callable[[Trial], Solution]  # the cheapest plan for a trial; its certificate counts what `value` does


@dataclass(frozen=True, slots=True)
class SoftPlan:
    """The best plan found, with its certificate and latencies, and the targets that were tried, in words.

    `cheapest`: the plan of least cost with its latencies; None if that is the best one.
    """

    plan: Plan
    judged: Judged
    cheapest: tuple[Plan, Judged] | None
    text: str


def counted_usd_per_h(plan: Plan) -> float:
    """What a plan counts beside its p99 latencies."""
    return plan.counted_usd_per_h


def planned_anew(cheapest: Solution, gap: float) -> SolveTrial:
    """The cheapest plan of each trial, found from the cheapest one of all on."""
    proof = cheapest.certificate
    is_start = proof is not None and proof.termination != Termination.TIME_LIMIT

    def solve(trial: Trial) -> Solution:
        plan = None if cheapest.plan is None else with_targets_of(trial.problem, cheapest.plan)
        start = replace(cheapest, plan=plan) if is_start else None
        options = SolveOptions(gap, trial.limit_s, time.monotonic, deadline=trial.deadline, start=start)
        return solve_in_time(trial.problem, options, trial.judge)

    return solve


def best_with_penalties(
    problem: Problem,
    cheapest: Solution,
    solve: SolveTrial,
    *,
    gap: float | None,
    clock: Clock,
    progress: Progress,
    value: Callable[[Plan], float] = counted_usd_per_h,
    names: Collection[str] | None = None,
) -> SoftPlan | None:
    """The plan of least `value` and penalties; None without a cheapest plan to start from.

    `value`: what a plan counts beside its p99 latencies. `gap`: what may be left to save. `names`: the workflows with
    soft targets that are planned; the others stay as they are.
    """
    targets = {name: one for name, one in soft_targets(problem).items() if names is None or name in names}
    if cheapest.plan is None or cheapest.certificate is None:
        return None
    trials = _Trials(problem, solve, clock, progress, value)
    first = trials.candidate(cheapest.plan, cheapest.certificate.bound)
    tolerance = TOLERANCE if gap is None else gap
    search = SoftSearch(targets, first, trials.in_time, _least_s(problem), tolerance)
    trials.search, trials.tolerance = search, tolerance
    outcome = search.run()
    progress(1, 1, "done")
    cut_short = cheapest.certificate.termination == Termination.TIME_LIMIT or trials.is_late
    outcome = replace(outcome, out_of_time=outcome.out_of_time or cut_short)
    return trials.answer(search, outcome, first)


class _Trials:
    """Plans for hard targets, each with a part of the time and of the progress.

    `is_late`: time may have cut one short.
    """

    def __init__(
        self,
        problem: Problem,
        solve: SolveTrial,
        clock: Clock,
        progress: Progress,
        value: Callable[[Plan], float],
    ) -> None:
        self.problem, self.solve, self.clock = problem, solve, clock
        self.progress, self.value, self.soft = progress, value, soft_targets(problem)
        self.search: SoftSearch[Plan] | None = None
        self.tolerance, self.is_late = 0.0, False

    def candidate(self, plan: Plan, bound: float) -> Candidate[Plan]:
        """A plan with the p99 latencies of one simulation. `bound`: on the value of all plans sought with it."""
        p99_s, _ = first_p99_s(plan, {})
        return self._candidate(plan, bound, p99_s)

    def _candidate(self, plan: Plan, bound: float, p99_s: Targets) -> Candidate[Plan]:
        own = {name: seconds for name, seconds in p99_s.items() if name in self.soft}
        return Candidate(self.value(plan), bound, own, plan)

    def in_time(self, targets_s: Targets) -> Candidate[Plan] | NoPlan:
        """Implements `PlanInTime`."""
        left_s = self.clock.left()
        if left_s is not None and left_s < LEAST_S:
            return NoPlan(out_of_time=True)
        hard = with_deadlines(self.problem, targets_s)
        trial = Trial(hard, self._judge, self._below, self.clock.share(TARGET_SHARE).left(), self._tell(targets_s))
        try:
            solution = self.solve(trial)
        except OutOfTimeError:
            return NoPlan(out_of_time=True)
        except SolverError:
            return NoPlan()
        proof, refused = solution.certificate, solution.infeasibility
        if solution.plan is None or proof is None:
            self.is_late = self.is_late or left_s is not None
            return NoPlan() if refused is None or refused.breaches else NoPlan(refused.least_usd_per_h)
        self.is_late = self.is_late or proof.termination == Termination.TIME_LIMIT
        return self.candidate(with_targets_of(self.problem, solution.plan), proof.bound)

    def _tell(self, targets_s: Targets) -> Callable[[float, float], None]:
        done, most = (0, 1) if self.search is None else (self.search.tried - 1, self.search.most)
        within = ", ".join(f"{name} {formats.duration(own_s)}".strip() for name, own_s in targets_s.items())

        def tell(part: float, total: float) -> None:
            self.progress(done + part / max(total, 1e-9), most, f"p99 within {within}: {self._summary}")

        return tell

    @property
    def _summary(self) -> str:
        if self.search is None:
            return "cheapest plan"
        return f"least cost and penalty so far {formats.usd(self.search.value(self.search.best))} USD/h"

    @property
    def _best(self) -> float:
        """The value that a plan must be below to be worth its while."""
        return math.inf if self.search is None else self.search.value(self.search.best) * (1.0 - self.tolerance)

    def _below(self) -> float:
        """Implements `Deadline.below`."""
        return self._best

    def _judge(self, plan: Plan) -> float:
        """Implements `Judge`: the p99 latency as a multiple of the one at which the plan is too late to be chosen.

        That is the target tried, or, if it is less, the one at which its value is that of the best plan.
        """
        tried = plan.slo_by_workflow
        if not any(tried[name].latency_p99_s is not None for name in tried if name in self.soft):
            return multiple_of_target(plan)  # what is left of it after a loss
        stated = with_targets_of(self.problem, plan)
        spare = self._best - self.value(stated)
        limits_s = {
            name: self._limit_s(name, math.inf if slo.latency_p99_s is None else slo.latency_p99_s, spare)
            for name, slo in tried.items()
        }
        p99_s, is_whole = first_p99_s(plan, {name: one for name, one in limits_s.items() if one < math.inf})
        late = max(p99_s[name] / limit_s for name, limit_s in limits_s.items())
        if not is_whole:
            return max(1.0 + SAME, late)
        if not self._keeps_hard_targets(stated):
            return max(1.0 + SAME, late)
        if self.search is not None and not self.problem.is_for_ways:  # those plans may be told apart by more
            self.search.offer(self._candidate(stated, 0.0, p99_s))
        return late

    def _limit_s(self, name: str, target_s: float, spare: float) -> float:
        """The p99 latency of a workflow from which on a plan is too late. `spare`: what its penalties may count."""
        soft = self.soft.get(name)
        if soft is None or math.isinf(spare):
            return target_s
        return min(target_s, soft.p99_s + max(0.0, spare) / soft.usd_per_h_per_s)

    def _keeps_hard_targets(self, plan: Plan) -> bool:
        if not latency_targets(plan):
            return True
        quick = quick_judgement(plan)
        return (quick is None or quick.kept) and breach_after_loss(self.problem, plan) is None

    def answer(self, search: SoftSearch[Plan], outcome: SoftOutcome[Plan], cheapest: Candidate[Plan]) -> SoftPlan:
        """The best plan by all simulations, with the certificate of cost and penalties together."""
        best: tuple[float, Plan, Judged] | None = None
        for candidate in search.ranked[:MOST_CONFIRMED]:
            if best is not None and best[2].kept and best[0] <= search.value(candidate):
                break
            plan = candidate.planned
            judged = judged_latency(plan) or Judged(plan, {}, {})  # no target if it leaves out who has one
            value = candidate.cost_usd_per_h + sum(judged.penalties_usd_per_h.values())
            if best is None or (judged.kept, -value) > (best[2].kept, -best[0]):
                best = value, plan, judged
        if best is None:
            raise AssertionError("the cheapest plan is a candidate")
        value, plan, judged = best
        penalty = plan.accuracy_penalty_usd_per_h + sum(judged.penalties_usd_per_h.values())
        bound = min(value, outcome.bound_usd_per_h)
        ended = termination_of(value, bound, out_of_time=outcome.out_of_time)
        certificate = replace(
            Certificate.of(value, bound, ended),
            penalty_usd_per_h=penalty,
            forgone_usd_per_h=plan.forgone_usd_per_h,
            keeps=plan.certificate.keeps,
        )
        before = judged_so_far(cheapest.planned)
        other = None if before is None or plan is cheapest.planned else (cheapest.planned, before)
        plan = replace(plan, certificate=certificate)
        return SoftPlan(plan, replace(judged, plan=plan), other, _text(self.soft, outcome))


def _least_s(problem: Problem) -> Mapping[str, float]:
    """What is proven to be below every plan's p99 latency; left out where mixtures may be faster.

    So are workflows that may be left out, which then count nothing, and those of more than a few.
    """
    if problem.may_mix or has_many_workflows(problem):
        return {}
    worths = {workflow.name: workflow.worth_usd_per_h for workflow in problem.workflows}
    others: dict[str, float | None] = dict.fromkeys(problem.slo_by_workflow)
    return {
        name: least_latency_s(with_deadlines(problem, {**others, name: 1.0}))
        for name in soft_targets(problem)
        if worths.get(name) is None
    }


def _text(targets: Mapping[str, SoftTarget], outcome: SoftOutcome[Plan]) -> str:
    """What was compared; empty if the cheapest plan meets the targets or is proven to be the best at once."""
    if not outcome.tried:
        return ""
    compared = "least cost and penalty of the cheapest plans without and with"
    if len(targets) > 1:
        return f"{compared} {formats.count(len(outcome.tried), 'set')} of p99 targets"
    tried_s = [seconds for one in outcome.tried for seconds in one.values()]
    between = " to ".join(dict.fromkeys(map(formats.duration, (min(tried_s), max(tried_s)))))
    refused_s = "" if outcome.refused is None else formats.duration(*outcome.refused.values())
    refused = f"; for {refused_s} no better plan was found" if refused_s else ""
    return f"{compared} {formats.count(len(tried_s), 'p99 target')}, {between}{refused}"


def reached_s(judged: Judged) -> Mapping[str, float]:
    """Workflow with a soft target -> that, or the p99 latency of the plan if it is above it."""
    return {name: max(judged.targets_s[name], judged.p99[name].p99_s) for name in judged.penalties_usd_per_h}
