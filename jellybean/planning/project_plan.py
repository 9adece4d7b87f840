"""Plan a project: from documents to a validated plan.

The cheapest plan is simulated first. If it misses a p99 latency target, the solver searches with its own latency
estimate, and its plans are simulated too: a plan that misses a target in simulation is never returned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jellybean.documents import AnyProject, build_problem
from jellybean.errors import InfeasibleError
from jellybean.planning.deadline.predicted_latency import (
    FAR,
    judged_latency,
    latency_breach,
    latency_targets,
    quick_judgement,
)
from jellybean.planning.deadline.simulated_deadline import InTime, cost_of, in_time
from jellybean.planning.deadline.simulation_judge import SAME
from jellybean.planning.deadline.soft_plan import best_with_penalties, planned_anew
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean.planning.planned import Planned
from jellybean.planning.searched_objectives import plan_for_objective, stated_objective
from jellybean_solver import (
    DEFAULT_GAP,
    VALUE_TOLERANCE,
    Baseline,
    Clock,
    Network,
    Objective,
    OutOfTimeError,
    Plan,
    Problem,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    TooManyWaysError,
    as_planned,
    baselines,
    deadline_s,
    fastest_of_equal_cost,
    in_true_prices,
    is_large,
    kinds_text,
    limited_work,
    of_one_selection,
    quick_solution,
    solve,
    solve_with,
    startable,
    without_forms,
    work_limit,
)

ACCURACY_TOLERANCE = 1e-6  # percentage points: accuracies closer than this are equal
BASELINE_S = 5.0  # time limit of each baseline, if the plan has no time limit
# Of the time limit, for the search of the cheapest plan: the rest is for its p99 and what it is compared with.
SEARCH_PART, SEARCH_PART_IN_TIME, SEARCH_PART_OF_WAYS = 0.8, 0.5, 0.6
SEARCH_PART_BESIDE_SOFT = 0.5  # of the time of plans in time, for hard targets where there are soft ones, too
CHEAPEST_PERCENT, BASELINES_PERCENT = 10.0, 90.0  # of the progress: the search in between takes longest

# For a plan by a simple rule where the search found none: at least, also beyond the time limit, and without one.
QUICK_S, UNLIMITED_QUICK_S = 1.0, 20.0
# Where time ends the search at a larger relative gap the rule may have a better plan, in this part of the time left.
WIDE_GAP, BETTER_PART = 0.1, 0.7


Progress = Callable[[float, float, str], None]  # progress callback with the arguments done, total, label


def plan_project(
    project: AnyProject,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    compare: bool = True,
    weigh: bool = True,
    running: Plan | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Solve, then check the p99 latency by simulation. An infeasible problem is a result, not an exception.

    `time_limit_s` is for all of it, and so is the limit of the work around it. `compare`: also solve the baselines,
    together within what is left of the time, or each in 5 seconds without a limit. `weigh`: find the plan of least cost
    and penalties if p99 targets are soft, not just the cheapest one. `running`: the plan that is changed, which limits
    how many workers are started.
    """
    report = progress or (lambda done, total, label: None)
    with limited_work(time_limit_s, time.monotonic) as limit:
        if stated_objective(project) in (Objective.RATE, Objective.LATENCY):

            def plan_one(asked: AnyProject, limit_s: float | None, is_last: bool) -> Planned:
                compares = compare and is_last
                weighs = weigh and is_last
                return plan_project(
                    asked, gap=gap, time_limit_s=limit_s, compare=compares, weigh=weighs, running=running
                )

            return plan_for_objective(project, plan_one, limit.left(), report)
        report(0, 100, "cheapest plan")
        problem = build_problem(project)
        if running is not None:
            problem = startable(problem, running)
        planned = _plan_at_least_cost(problem, gap, limit, compare, weigh, report)
        if planned.plan is None:
            return planned
        return replace(planned, plan=replace(planned.plan, overrides=project.overrides))


def _plan_at_least_cost(
    problem: Problem, gap: float | None, limit: Clock, compare: bool, weigh: bool, report: Progress
) -> Planned:
    """The cheapest plan, or the one of the highest mean accuracy, that meets the targets."""
    started = time.perf_counter()
    is_soft, is_timed = bool(soft_targets(problem)), bool(soft_targets(problem)) or deadline_s(problem) is not None
    cheapest_percent = CHEAPEST_PERCENT if is_timed else BASELINES_PERCENT

    def found(share: float, known: str) -> None:
        report(cheapest_percent * share, 100, known)

    part = SEARCH_PART_OF_WAYS if problem.is_for_ways else SEARCH_PART
    if is_timed:
        part = SEARCH_PART_IN_TIME
    options = SolveOptions(gap, limit.share(part).left(), time.monotonic, tell=found)
    solution = search_or_rule(problem, options, limit)
    solve_s = time.perf_counter() - started
    report(cheapest_percent, 100, "p99 latency")
    # The rules that plans are compared with know no penalty, and no price but that of money.
    compare = compare and not is_soft and problem.counts is Objective.COST
    left_s = limit.share(part).left() if compare else limit.left()
    # For the many solves of the deadline search, and for the baselines.
    tolerance, gap = gap, DEFAULT_GAP if gap is None else gap

    def searched(done: float, total: float, label: str) -> None:
        report(cheapest_percent + (BASELINES_PERCENT - cheapest_percent) * done / total, 100, label)

    settled = settle(problem, solution, gap, left_s, tolerance=tolerance, weigh=weigh, progress=searched)
    if settled.solution is not solution:  # if the cheapest plan stays, its simulation does not count as search time
        solve_s = time.perf_counter() - started
    solution, reasons = settled.solution, settled.reasons
    plan = solution.plan if not reasons else None
    fastest = settled.fastest if settled.nearest_p99_s is not None else None
    cheapest = settled.cheapest if not reasons else None
    report(BASELINES_PERCENT, 100, "baselines")
    compared: tuple[Baseline, ...] = ()
    if compare and plan is not None:
        left_s = limit.left()
        limit_s = BASELINE_S if left_s is None else left_s / 2
        compared = _baselines(without_forms(problem), gap, limit_s)
        if problem.has_forms:
            plain = without_forms(problem)
            keep_deadline = partial(in_time, plain, gap=gap, time_limit_s=limit_s)
            name = f"no {kinds_text(problem)}"
            compared = (_solved(plain, name, gap, limit_s, keep_deadline), *compared)
    if plan is not None:
        plan = in_true_prices(problem, plan)
        compared = tuple(_with_latency_note(baseline, plan) for baseline in compared)
    report(100, 100, "done")
    return Planned(
        problem,
        solution,
        plan,
        reasons,
        compared,
        solve_s,
        settled.nearest_p99_s,
        None if fastest is None else in_true_prices(problem, fastest),
        settled.judged,
        None if cheapest is None else (in_true_prices(problem, cheapest[0]), cheapest[1]),
        settled.compared,
    )


def search_or_rule(problem: Problem, options: SolveOptions, limit: Clock) -> Solution:
    """The best solution of a search, and until the `limit` of a simple rule where that is not good enough."""
    try:
        with limited_work(options.time_limit_s, time.monotonic):
            solution = solve_with(problem, options)
    except (OutOfTimeError, TooManyWaysError) as error:
        bound = error.bound if isinstance(error, OutOfTimeError) else 0.0
        ended = Termination.TIME_LIMIT if isinstance(error, OutOfTimeError) else Termination.GAP
        rule = quick_solution(problem, _quick_clock(limit, 1.0, QUICK_S), bound, ended=ended)
        if rule is None:
            raise
        return rule
    proof = solution.certificate
    if solution.plan is None or proof is None or proof.termination != Termination.TIME_LIMIT or proof.gap <= WIDE_GAP:
        return solution
    is_accuracy = proof.objective_of is Objective.MEAN_ACCURACY
    bound = 100.0 - proof.bound if is_accuracy else proof.bound
    rule = quick_solution(problem, _quick_clock(limit, BETTER_PART, 0.0), bound)
    if rule is None or rule.certificate is None:
        return solution
    gained = (proof.objective - rule.certificate.objective) * (-1.0 if is_accuracy else 1.0)
    return rule if gained > 0.0 else solution


def _quick_clock(limit: Clock, part: float, least_s: float) -> Clock:
    """The time of a simple rule: a part of what the search has left of the `limit`, and at least so many seconds."""
    left_s = limit.left()
    seconds = UNLIMITED_QUICK_S if left_s is None else max(least_s, part * left_s)
    return Clock(time.monotonic, time.monotonic() + seconds)


def _baselines(problem: Problem, gap: float, time_limit_s: float) -> tuple[Baseline, ...]:
    """The baselines. Those of a plan that may mix variants give every request one selection, of the mean accuracy.

    None where the accuracy is maximised or a target soft, or the plan bears losses: they are rules for a low cost.
    """
    if problem.objective is not Objective.COST or problem.survives or any(slo.is_soft for slo in problem.targets):
        return ()
    solved: tuple[Baseline, ...] = ()
    if problem.may_mix:
        problem = of_one_selection(problem)
        keep_deadline = partial(in_time, problem, gap=gap, time_limit_s=time_limit_s, thorough=False)
        solved = (_solved(problem, "one variant for all requests", gap, time_limit_s, keep_deadline),)
    return *solved, *baselines(problem, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic)


def _with_latency_note(baseline: Baseline, plan: Plan) -> Baseline:
    """The baseline, with a note added if its plan misses a p99 latency target.

    A baseline that costs more than `plan` is simulated only once, because `plan` is better in any case, and one that is
    cheaper until it is known to be late.
    """
    cost = baseline.cost_usd_per_h
    if not latency_targets(plan) or baseline.note or cost is None:
        return baseline
    cheaper = cost < cost_of(plan) * (1 - SAME)
    for own in baseline.plans:
        breach = quick_judgement(own, far=FAR, whole=True) if cheaper else quick_judgement(own, most=1)
        if breach is not None and not breach.kept:
            prefix = f"{own.name}: " if len(baseline.plans) > 1 else ""
            return replace(baseline, status="limit_broken", note=prefix + breach.text.rpartition(" (")[0])
    return baseline


def _solved(
    problem: Problem,
    name: str,
    gap: float,
    time_limit_s: float,
    keep_deadline: Callable[[Solution], InTime],
) -> Baseline:
    """Baseline: the cheapest plan of a problem. `keep_deadline` makes it meet the p99 target."""
    try:
        first = solve(problem, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic, explained=False)
        result = keep_deadline(first)
    except SolverError as error:
        return Baseline(name, "time_limit", None, None, None, str(error))
    plan = result.solution.plan
    if plan is None or result.reasons:
        return Baseline(name, "infeasible", None, None, None, (*result.reasons, "infeasible")[0])
    return Baseline(name, result.solution.status, plan.cost, plan.accuracy, plan.selection, "")


def settle(
    problem: Problem,
    cheapest: Solution,
    gap: float,
    time_limit_s: float | None,
    *,
    thorough: bool = True,
    tolerance: float | None = None,
    weigh: bool = True,
    progress: Progress = lambda done, total, label: None,
) -> InTime:
    """Replace the cheapest plan if necessary: by one that meets the p99 targets, or by the best of equal cost.

    Where p99 targets are soft, by the one of least cost and penalties. A better plan of equal cost is only sought
    without a time limit. `tolerance`: the relative saving that is left for soft targets; None: the usual one. `weigh`:
    as in `plan_project`.
    """
    with limited_work(time_limit_s, time.monotonic) as clock:
        part = SEARCH_PART_BESIDE_SOFT if soft_targets(problem) else 1.0
        found = _settled(problem, cheapest, gap, clock.share(part).left(), thorough, progress)
        if found.reasons or found.solution.plan is None or not (weigh and soft_targets(problem)):
            return found
        if problem.objective is not Objective.COST:  # what counts beside the cost is told where that is minimised
            return replace(found, judged=judged_latency(found.solution.plan))
        best = _with_penalties(problem, found, gap, tolerance, clock, progress)
        if best.judged is None or best.judged.kept:
            return best
        # Time ended while the plan was known by fewer simulations: the one that keeps the hard targets stands.
        kept = found if found.judged is not None else replace(found, judged=judged_latency(found.solution.plan))
        if kept.judged is None or kept.judged.kept:
            return kept
        return replace(kept, reasons=(kept.judged.text, "no plan in time was found before the time ended"))


def _settled(
    problem: Problem,
    cheapest: Solution,
    gap: float,
    time_limit_s: float | None,
    thorough: bool,
    progress: Progress,
) -> InTime:
    """The same by the hard targets alone."""
    found = in_time(problem, cheapest, gap, time_limit_s, thorough=thorough, progress=progress)
    if found.solution is not cheapest or cheapest.plan is None or found.reasons or time_limit_s is not None:
        return found
    better = best_of_equal_cost(problem, cheapest)
    if better is cheapest or better.plan is None:
        return found
    return InTime(better, judged=judged_latency(better.plan) if latency_targets(better.plan) else None)


def weighed(problem: Problem, cheapest: Solution, gap: float = DEFAULT_GAP) -> Solution:
    """The solution with the plan of least cost and penalties instead of the cheapest, within the limit of the work."""
    if cheapest.plan is None:
        return cheapest
    found = InTime(cheapest)
    return _with_penalties(problem, found, gap, None, work_limit(), lambda done, total, label: None).solution


def _with_penalties(
    problem: Problem,
    found: InTime,
    gap: float,
    tolerance: float | None,
    clock: Clock,
    progress: Progress,
) -> InTime:
    """The plan of least cost and penalties, from the cheapest one on that meets the hard targets."""
    cheapest, solve_trial = found.solution, planned_anew(found.solution, gap)
    best = best_with_penalties(problem, cheapest, solve_trial, gap=tolerance, clock=clock, progress=progress)
    if best is None:
        return found
    solution = replace(cheapest, plan=best.plan)
    return replace(
        found, solution=solution, judged=best.judged, cheapest=best.cheapest or found.cheapest, compared=best.text
    )


def best_of_equal_cost(problem: Problem, solution: Solution) -> Solution:
    """Break ties: of the plans of the same cost the most accurate one, of these the one of least closed-form p99.

    The second search is bounded (`fastest_of_equal_cost`): it may miss a faster plan. Returns `solution` unchanged
    under the conditions of `more_accurate`, and if the faster plan misses a p99 target in simulation.
    """
    best = more_accurate(problem, solution)
    if best.plan is None or not _is_comparable(problem, best):
        return best
    fastest = fastest_of_equal_cost(as_planned(problem, best.plan), best.plan)
    if fastest is best.plan or latency_breach(fastest) is not None:
        return best
    return replace(best, plan=fastest)


def _is_comparable(problem: Problem, solution: Solution) -> bool:
    """True if plans of equal cost are compared: one selection, no large fleet, and a cost that is proven optimal."""
    if problem.is_for_ways:
        return False
    is_proven = solution.certificate is not None and solution.certificate.is_optimal
    return is_proven and not problem.workflows and not is_large(Network(problem))


def more_accurate(problem: Problem, solution: Solution) -> Solution:
    """Find the most accurate plan of the same cost, which may use spare capacity of workers that are paid for anyway.

    Returns `solution` unchanged if it is not proven optimal, for large fleets, and for several workflows, because
    their accuracies cannot be compared.
    """
    plan, proof = solution.plan, solution.certificate
    if plan is None or proof is None or plan.accuracy is None or not _is_comparable(problem, solution):
        return solution
    stated = problem.slo.budget_usd_per_h
    budget = min(cost_of(plan) * (1 + VALUE_TOLERANCE), math.inf if stated is None else stated)
    best = solution
    while best.plan is not None and best.plan.accuracy is not None:
        slo = replace(problem.slo, accuracy=best.plan.accuracy + ACCURACY_TOLERANCE, budget_usd_per_h=budget)
        try:
            found = solve_with(replace(problem, slo=slo), SolveOptions(explained=False))
        except SolverError:
            break
        if found.plan is None or latency_breach(kept := replace(found.plan, slo=problem.slo)) is not None:
            break
        objective = cost_of(kept)
        kept = replace(kept, certificate=replace(proof, objective=objective, bound=objective))
        best = Solution(kept, None, solution.selections_tried)
    return best


def require_plan(planned: Planned, note: str = "") -> Plan:
    """Return the plan; InfeasibleError with the reasons if there is none."""
    if planned.plan is None:
        raise InfeasibleError(planned.reasons, note)
    return planned.plan
