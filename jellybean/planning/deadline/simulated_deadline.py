"""Searches a plan that meets its p99 latency target if the cheapest plan misses it; every plan found is simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from jellybean.display import formats
from jellybean.planning.deadline.after_losses import breach_after_loss
from jellybean.planning.deadline.nearest_latency import Nearest, NearestLatency
from jellybean.planning.deadline.predicted_latency import (
    FAR,
    Judged,
    judged_latency,
    judged_so_far,
    latency_targets,
    quick_judgement,
)
from jellybean.planning.deadline.simulation_judge import Progress, SimulationJudge, plans, solve_in_time
from jellybean.quantities import DURATION, format_quantity
from jellybean_solver import (
    DEFAULT_SETTINGS,
    QUICK_SETTINGS,
    Certificate,
    Clock,
    Deadline,
    Objective,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    deadline_s,
    deadline_shares,
    has_many_workflows,
    least_latency_s,
    limited_to,
    limited_work,
    stressed,
)

# Of the time that is left: for the simulations of the cheapest plan, and for the search of another. What remains is for
# the simulations of the plan that was found, without which its p99 would be stated in closed form.
JUDGE_PART, SEARCH_PART = 0.4, 0.75


@dataclass(frozen=True, slots=True)
class InTime:
    """A solution whose plan meets its p99 targets in simulation, or, if there are `reasons`, one that does not.

    With `reasons`: `nearest_p99_s` is the least p99 target that a plan was found for, None for several workflows, and
    `fastest` that plan. `judged`: predicted latencies of the solution's plan, None without a p99 target. `cheapest`:
    the cheapest plan with its latencies, if it was replaced. Quick results may be from fewer simulations. `compared`:
    the targets that were tried for soft ones, in words.
    """

    solution: Solution
    reasons: tuple[str, ...] = ()
    nearest_p99_s: float | None = None
    fastest: Plan | None = None
    judged: Judged | None = None
    cheapest: tuple[Plan, Judged] | None = None
    compared: str = ""


def in_time(
    problem: Problem,
    solution: Solution,
    gap: float,
    time_limit_s: float | None,
    *,
    thorough: bool = True,
    nearest: bool = True,
    progress: Progress = lambda done, total, label: None,
) -> InTime:
    """Search a solution that meets the p99 target, if the plan of `solution` (the cheapest) misses it in simulation.

    If none meets it, the least target that a plan meets is sought. `thorough=False` tries only a few plans, simulates
    each once and leaves the second search out, as `nearest=False` does. `time_limit_s` includes the simulations.
    """
    with limited_work(time_limit_s, time.monotonic) as clock:
        return _in_time(problem, solution, gap, clock, thorough, nearest, progress)


def _in_time(
    problem: Problem,
    solution: Solution,
    gap: float,
    clock: Clock,
    thorough: bool,
    nearest: bool,
    progress: Progress,
) -> InTime:
    target_s = deadline_s(problem)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    if solution.plan is None or target_s is None:
        return InTime(solution, reasons)
    judge_plan = judged_latency if thorough else partial(quick_judgement, most=1, whole=True)
    with limited_to(clock.share(JUDGE_PART)):
        quick = quick_judgement(solution.plan, far=FAR, whole=True) if thorough else judge_plan(solution.plan)
    if quick is None or (quick.kept and breach_after_loss(problem, solution.plan) is None):
        return InTime(solution, reasons, judged=judge_plan(solution.plan))
    judge = SimulationJudge(deadline_shares(problem), quick)

    def tried(done: float, most: float) -> None:
        progress(done, 2 * most, judge.summary)

    deadline = Deadline(target_s, settings=DEFAULT_SETTINGS if thorough else QUICK_SETTINGS, advance=tried)
    try:
        start = solution if has_many_workflows(problem) and not problem.has_forms else None
        search_s = clock.share(SEARCH_PART).left()
        options = SolveOptions(gap, search_s, time.monotonic, deadline=deadline, start=start)
        simulated = solve_in_time(problem, options, judge if thorough else partial(judge, most=1))
        if simulated.plan is not None:
            late = judged_so_far(stressed(solution.plan)) or quick  # it may take seconds to simulate, and is not chosen
            return InTime(simulated, judged=judge_plan(simulated.plan), cheapest=(solution.plan, late))
        refused = simulated.infeasibility
        reasons = refused.reasons if refused is not None else ()
    except SolverError as error:
        reasons = (str(error),)

    def second_half(done: float, total: float, label: str) -> None:
        progress(total + done, 2 * total, label)

    found = None
    # The nearest target is sought for few workflows, and without losses, of which the judge sees what is left of plans.
    if thorough and nearest and not problem.survives and not has_many_workflows(problem):
        left_s = clock.share(SEARCH_PART).left()
        found = NearestLatency(problem, solution.plan, judge, gap, left_s, second_half).run()
    if found is None:
        return InTime(solution, reasons or ("no plan in time was found",), None, judge.fastest, quick)
    if found.targeted is problem:
        late, meeting = judged_so_far(stressed(solution.plan)) or quick, _certified(problem, solution, found)
        return InTime(meeting, judged=judged_latency(found.plan), cheapest=(solution.plan, late))
    late = judged_so_far(stressed(solution.plan)) or quick
    refusals = (_lateness(late), *reasons, _named(problem, judge, found))
    return InTime(solution, refusals, max(latency_targets(found.plan).values(), default=None), found.plan, quick)


def _certified(problem: Problem, cheapest: Solution, nearest: Nearest) -> Solution:
    """The solution with a plan that meets the targets and was found while its p99, not its value, was minimised."""
    plan, proof = nearest.plan, cheapest.certificate
    ended = Termination.TIME_LIMIT if nearest.ended_by else Termination.GAP
    if problem.objective is Objective.MEAN_ACCURACY:
        reached = plan.mean_accuracy or 0.0
        certificate = Certificate.of_accuracy(reached, 100.0 if proof is None else max(reached, proof.bound), ended)
    else:
        penalty = plan.accuracy_penalty_usd_per_h
        value = cost_of(plan) + penalty
        bound = 0.0 if proof is None else min(value, proof.bound)
        certificate = replace(Certificate.of(value, bound, ended), penalty_usd_per_h=penalty)
    return replace(cheapest, plan=replace(plan, certificate=certificate))


def _lateness(judged: Judged) -> str:
    """That the cheapest plan misses a target, and by how much."""
    return f"the cheapest plan ({formats.usd(cost_of(judged.plan))} USD/h) is too slow: {judged.text}"


def _named(problem: Problem, judge: SimulationJudge, nearest: Nearest) -> str:
    """The nearest p99 targets that a plan meets, as `--set` options, with its cost and what is known of lower ones."""
    targets_s = latency_targets(nearest.plan)
    paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in targets_s}
    settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in targets_s.items())
    verb = "is" if len(targets_s) == 1 else "are"
    notes = [f"{plans(judge.simulated)} simulated"]
    if nearest.ended_by:
        notes.append(f"other plans may be faster or cheaper, as {nearest.ended_by} ended the search")
    if not problem.workflows:
        least_s = least_latency_s(problem)
        if nearest.refused_s > least_s:
            notes.append(f"for {formats.duration(nearest.refused_s)} none was found")
        if least_s > 0.0:
            notes.append(f"below {formats.duration(least_s)} there is none, even with zero queueing delay")
    cost = formats.usd(cost_of(nearest.plan))
    return f"nearest found: {', '.join(settings)} {verb} kept by a plan for {cost} USD/h ({'; '.join(notes)})"


def cost_of(plan: Plan) -> float:
    """Cost of a plan in USD per hour, workers and traffic: the key by which callers take the cheapest of several."""
    return plan.cost.total_usd_per_h
