"""Searches a plan that meets its p99 latency target if the cheapest plan misses it; every plan found is simulated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jellybean.display import formats
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import (
    Judged,
    breach_after_loss,
    judge,
    judged_latency,
    latency_targets,
    predicted_p99,
)
from jellybean.planning.simulation import SEEDS
from jellybean.quantities import DURATION, format_quantity, rounded_up
from jellybean_solver import (
    DEFAULT_SETTINGS,
    QUICK_SETTINGS,
    Clock,
    Deadline,
    DeadlineSettings,
    Network,
    Objective,
    Plan,
    Problem,
    Progress,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    has_many_workflows,
    is_large,
    least_latency_s,
    limited_to,
    limited_work,
    of_one_selection,
    solve_with,
    stressed,
    with_deadlines,
)

# Of the time that is left: for the simulations of the cheapest plan, and for the search of another. What remains is for
# the simulations of the plan that was found, without which its p99 would be stated in closed form.
JUDGE_PART, SEARCH_PART = 0.4, 0.75
PRECISION = 0.05  # relative width at which a bisection ends: p99s of one plan with other seeds differ that much
FLEET_SEARCHES = 3  # targets tried for a fleet, whose searches take minutes; nobody asked for this answer
FIRST_IN_TIME = replace(DEFAULT_SETTINGS, improvements=0, fleet_improvements=0, counted=0)  # end at the first plan

# The best plan of a problem under a deadline, in so many seconds; its certificate counts what its value does.
Solve = Callable[[Problem, Deadline | None, float | None], Solution]


def no_progress(done: float, total: float, label: str) -> None:
    """No progress."""


def planned_anew(gap: float | None, start: Solution | None = None) -> Solve:
    """Plans without regard to any running one; `start`: the best plan without a deadline, if it is known."""
    proof = None if start is None else start.certificate
    is_known = proof is not None and proof.termination != Termination.TIME_LIMIT

    def solve(problem: Problem, deadline: Deadline | None, limit_s: float | None) -> Solution:
        first = start if is_known or has_many_workflows(problem) else None
        if first is not None and first.plan is not None:
            first = replace(first, plan=with_targets_of(problem, first.plan))
        options = SolveOptions(gap, limit_s, time.monotonic, explained=False, deadline=deadline, start=first)
        return solve_with(problem, options)

    return solve


def in_time(
    problem: Problem,
    cheapest: Solution,
    solve: Solve,
    time_limit_s: float | None = None,
    *,
    thorough: bool = True,
    nearest: bool = True,
    progress: Progress = no_progress,
) -> Planned:
    """Search a solution that meets the p99 target, if the plan of `cheapest` misses it in simulation.

    If none meets it, the least target that a plan meets is sought. `thorough=False` tries only a few plans, simulates
    each once and leaves the second search out, as `nearest=False` does. `time_limit_s` includes the simulations.
    """
    target_s, plan, refused = problem.deadline_s, cheapest.plan, cheapest.infeasibility
    reasons = () if refused is None else refused.reasons
    if plan is None or target_s is None:
        return Planned(problem, cheapest, reasons)
    most = SEEDS if thorough else 1
    state = judged_latency if thorough else partial(judge, most=1, whole=True)
    with limited_work(time_limit_s, time.monotonic) as clock:
        with limited_to(clock.share(JUDGE_PART)):
            late = judge(plan, most=most, whole=True)
        if late is None or (late.kept and breach_after_loss(problem, plan) is None):
            return Planned(problem, cheapest, reasons, judged=state(plan))
        search = _Search(problem, solve, clock, late, progress)
        try:
            solution = search.solution(problem, DEFAULT_SETTINGS if thorough else QUICK_SETTINGS, most)
        except SolverError as error:
            reasons = (str(error),)
        else:
            if solution.plan is not None:
                return Planned(problem, solution, judged=state(solution.plan), cheapest=late)
            reasons = () if solution.infeasibility is None else solution.infeasibility.reasons
        # The nearest target is sought for few workflows, and without losses, of which the judge sees what is left.
        is_sought = thorough and nearest and not problem.survives and not has_many_workflows(problem)
        if not is_sought or math.isinf(search.fastest_s):  # as time ended before a simulation and links are full
            reasons = reasons or ("no plan in time was found",)
            return Planned(problem, cheapest, reasons, fastest=search.fastest, judged=late)
        lateness = f"the cheapest plan ({formats.usd(cost_of(plan))} USD/h) is too slow: {late.text}"
        return search.nearest(Planned(problem, cheapest, (lateness, *reasons), judged=late), late)


class _Search:
    """Searches under p99 targets; simulates the plans that it proposes, and remembers the `fastest`.

    `late`: what is known of the cheapest plan. `fastest_s`: the p99 latency of the fastest plan;
    of several workflows on the scale of the longest target. `simulated`: the number of plans.
    """

    def __init__(self, problem: Problem, solve: Solve, clock: Clock, late: Judged, progress: Progress) -> None:
        self.problem, self.solve, self.clock, self.progress = problem, solve, clock, progress
        self.target_s, self.ended_by = problem.deadline_s or 0.0, ""
        self.low_s = max(self.target_s, least_latency_s(problem))
        self.fastest, self.fastest_s, self.simulated = late.plan, late.share * self.target_s, 1

    def solution(self, problem: Problem, settings: DeadlineSettings, most: int) -> Solution:
        """The best plan under the problem's targets. `most`: simulations of each plan."""
        longest_s = problem.deadline_s or 0.0

        def tried(done: float, total: float) -> None:
            self.progress(done, 2 * total, self.summary)

        def share(plan: Plan) -> float:
            """The plan's p99 latency as a multiple of its target, of several the largest."""
            judged = judge(plan, most=most)
            if judged is None:
                return 0.0
            self.simulated += 1
            if judged.share * longest_s < self.fastest_s:
                self.fastest, self.fastest_s = plan, judged.share * longest_s
            return judged.share

        return self.solve(problem, Deadline(longest_s, share, settings, tried), self.clock.share(SEARCH_PART).left())

    @property
    def summary(self) -> str:
        """What is known so far, as a sentence."""
        cost, p99 = formats.usd(cost_of(self.fastest)), formats.duration(self.fastest_s)
        return f"least p99 so far {p99} for {cost} USD/h ({formats.count(self.simulated, 'plan')} simulated)"

    def nearest(self, refused: Planned, late: Judged) -> Planned:
        """The least p99 target for which a plan is found, as a `--set` option in the last reason: by bisection.

        Each target is given to the search that the command `plan` makes for it. While the range narrows, a search ends
        at its first plan in time; only the last one minimises the cost.
        """
        if self.problem.objective is Objective.COST or not self.problem.may_mix:
            self._narrow()
        plan, shares = self.fastest, self.problem.deadline_shares
        predicted = predicted_p99(stressed(plan))
        seconds = max((predicted[name].p99_s / shares[name] for name in latency_targets(plan)), default=math.inf)
        if math.isinf(seconds):
            return replace(refused, fastest=plan)
        targeted = self.problem if seconds <= self.target_s else with_longest_target(self.problem, seconds)
        plan = self._plan(targeted, DEFAULT_SETTINGS, SEEDS) or with_targets_of(targeted, plan)
        if targeted is self.problem:
            ended = Termination.TIME_LIMIT if self.ended_by else Termination.GAP
            proof = plan.certificate.bounded_by(replace(late.plan.certificate, termination=ended))
            planned = replace(refused, reasons=(), judged=judged_latency(plan), cheapest=late)
            return planned.with_plan(replace(plan, certificate=proof))
        reasons = (*refused.reasons, self._named(plan))
        reached_s = max(latency_targets(plan).values(), default=None)
        return replace(refused, reasons=reasons, nearest_p99_s=reached_s, fastest=plan)

    def _narrow(self) -> None:
        """Halve the range between the fastest plan and what has none, until it is narrow or a limit ends it.

        Where plans may mix variants the range is that of plans of one selection, which take less time to search.
        """
        problem = of_one_selection(self.problem) if self.problem.may_mix else self.problem
        low_s, most = self.low_s, FLEET_SEARCHES if is_large(Network(problem)) else math.inf
        while self.fastest_s > low_s * (1 + PRECISION):
            if self.clock.left() == 0.0 or most == 0:
                self.ended_by = f"its limit of {FLEET_SEARCHES} searches" if most == 0 else "the time limit"
                break
            middle_s = math.sqrt(low_s * self.fastest_s)
            self.progress(1, 2, f"{self.summary}; trying {formats.duration(middle_s)}")
            plan, most = self._plan(with_longest_target(problem, middle_s), FIRST_IN_TIME, 1), most - 1
            if plan is None or self.fastest_s > middle_s:
                low_s = middle_s
        if not self.problem.may_mix:
            self.low_s = low_s

    def _plan(self, problem: Problem, settings: DeadlineSettings, most: int) -> Plan | None:
        """The search's plan for the problem's targets; None if it finds none."""
        try:
            return self.solution(problem, settings, most).plan
        except SolverError:
            return None

    def _named(self, plan: Plan) -> str:
        """The targets that a plan meets, as `--set` options, with its cost and what is known of lower ones."""
        targets_s = latency_targets(plan)
        paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in targets_s}
        settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in targets_s.items())
        notes = [f"{formats.count(self.simulated, 'plan')} simulated"]
        if self.ended_by:
            notes.append(f"other plans may be faster or cheaper, as {self.ended_by} ended the search")
        least_s = 0.0 if self.problem.workflows else least_latency_s(self.problem)
        if self.low_s > least_s and not self.problem.workflows:
            notes.append(f"for {formats.duration(self.low_s)} none was found")
        if least_s > 0.0:
            notes.append(f"below {formats.duration(least_s)} there is none, even with zero queueing delay")
        verb, cost = "is" if len(targets_s) == 1 else "are", formats.usd(cost_of(plan))
        return f"nearest found: {', '.join(settings)} {verb} kept by a plan for {cost} USD/h ({'; '.join(notes)})"


def with_longest_target(problem: Problem, seconds: float) -> Problem:
    """The problem with its longest p99 target set to `seconds`, and the others scaled alike.

    Rounded up as `--set` options are printed, so that the option gives the same problem.
    """
    shares = problem.deadline_shares
    return with_deadlines(problem, {name: rounded_up(DURATION, share * seconds) for name, share in shares.items()})


def with_targets_of(problem: Problem, plan: Plan) -> Plan:
    """The plan, with the targets of the problem in place of its own."""
    slos = problem.slo_by_workflow
    workflows = tuple(replace(workflow, slo=slos[workflow.name]) for workflow in plan.workflows)
    return replace(plan, slo=problem.slo, workflows=workflows)


def cost_of(plan: Plan) -> float:
    """Cost of a plan in USD per hour, workers and traffic: the key by which callers take the cheapest of several."""
    return plan.cost.total_usd_per_h
