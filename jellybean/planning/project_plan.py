"""Plan a project: from documents to a validated plan.

Every plan goes the same way: the best plan without regard to latency, which is simulated; another one if it misses a
p99 target, as a plan that does so in simulation is never returned; then soft p99 targets are weighed against the cost.
How a problem is solved differs: anew, from a running plan, or beside workflows that stay (`Solve`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from jellybean.documents import AnyProject, build_problem
from jellybean.errors import InfeasibleError
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import check_latency, judge, judged_latency, latency_targets
from jellybean.planning.searched_objectives import plan_for_objective, stated_objective
from jellybean.planning.simulated_deadline import Solve, cost_of, in_time, no_progress, planned_anew
from jellybean.planning.soft_plan import TOLERANCE, SoftSearch
from jellybean.planning.soft_targets import soft_targets
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
    Progress,
    Solution,
    SolveOptions,
    SolverError,
    Termination,
    TooManyWaysError,
    baselines,
    is_large,
    kinds_text,
    limited_work,
    of_one_selection,
    quick_solution,
    served,
    solve_with,
    without_forms,
)

ACCURACY_TOLERANCE = 1e-6  # percentage points: accuracies closer than this are equal
SAME = 1e-6  # relative difference below which two costs count as equal
BASELINE_S = 5.0  # time limit of each baseline, if the plan has no time limit
# Of the time limit, for the search of the cheapest plan: the rest is for its p99 and what it is compared with.
SEARCH_PART, SEARCH_PART_IN_TIME = 0.8, 0.5
SEARCH_PART_BESIDE_SOFT = 0.5  # of the time of plans in time, for hard targets where there are soft ones, too
CHEAPEST_PERCENT, BASELINES_PERCENT = 10.0, 90.0  # of the progress: the search in between takes longest

# For a plan by a simple rule where the search found none: at least, also beyond the time limit, and without one.
QUICK_S, UNLIMITED_QUICK_S = 1.0, 20.0


def plan_project(
    project: AnyProject,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    compare: bool = True,
    weigh: bool = True,
    progress: Progress = no_progress,
) -> Planned:
    """Solve, then check the p99 latency by simulation. An infeasible problem is a result, not an exception.

    `time_limit_s` is for all of it, and so is the limit of the work around it. `compare`: also solve the baselines,
    together within what is left of the time, or each in 5 seconds without a limit. `weigh`: find the plan of least cost
    and penalties if p99 targets are soft, not just the cheapest one.
    """
    with limited_work(time_limit_s, time.monotonic) as limit:
        if stated_objective(project) not in (Objective.RATE, Objective.LATENCY):
            return _plan_at_least_cost(project, gap, limit, compare, weigh, progress)

        def plan_one(asked: AnyProject, limit_s: float | None, is_last: bool) -> Planned:
            return plan_project(
                asked, gap=gap, time_limit_s=limit_s, compare=compare and is_last, weigh=weigh and is_last
            )

        return plan_for_objective(project, plan_one, limit, progress)


def _plan_at_least_cost(
    project: AnyProject,
    gap: float | None,
    limit: Clock,
    compare: bool,
    weigh: bool,
    report: Progress,
) -> Planned:
    """The cheapest plan, or the one of the highest mean accuracy, that meets the targets."""
    problem, started = build_problem(project), time.perf_counter()
    is_timed = problem.deadline_s is not None or bool(soft_targets(problem))
    percent = CHEAPEST_PERCENT if is_timed else BASELINES_PERCENT

    def searched(done: float, total: float, label: str) -> None:
        report(percent + (BASELINES_PERCENT - percent) * done / total, 100, label)

    report(0, 100, "cheapest plan")
    part = SEARCH_PART_IN_TIME if is_timed else SEARCH_PART
    options = SolveOptions(
        gap, limit.share(part).left(), time.monotonic, tell=lambda share, known: report(percent * share, 100, known)
    )
    solution = search_or_rule(problem, options, limit)
    solve_s = time.perf_counter() - started
    report(percent, 100, "p99 latency")
    # Simple rules know no penalty, and no price but that of money.
    compares = compare and problem.objective is problem.counts is Objective.COST and not problem.survives
    compares = (
        compares and not any(slo.is_soft for slo in problem.slo_by_workflow.values()) and not soft_targets(problem)
    )
    left_s = limit.share(part).left() if compares else limit.left()
    settled = settle(problem, solution, gap, left_s, weigh=weigh, progress=searched)
    if settled.solution is not solution:  # if the cheapest plan stays, its simulation does not count as search time
        solve_s = time.perf_counter() - started
    report(BASELINES_PERCENT, 100, "baselines")
    plan = settled.plan
    compared = _compared(problem, plan, gap, limit) if compares and plan is not None else ()
    report(100, 100, "done")
    return replace(settled.of(project), baselines=compared, solve_s=solve_s)


def search_or_rule(problem: Problem, options: SolveOptions, limit: Clock) -> Solution:
    """The best solution of a search, and until the `limit` that of a simple rule if it finds none."""
    try:
        with limited_work(options.time_limit_s, time.monotonic):
            return solve_with(problem, options)
    except (OutOfTimeError, TooManyWaysError) as error:
        left_s = limit.left()
        rule_s = UNLIMITED_QUICK_S if left_s is None else max(QUICK_S, left_s)
        clock = Clock(time.monotonic, time.monotonic() + rule_s)
        if isinstance(error, OutOfTimeError):
            rule = quick_solution(problem, clock, error.bound)
        else:
            rule = quick_solution(problem, clock, ended=Termination.GAP)
        if rule is None:
            raise
        return rule


def settle(
    problem: Problem,
    cheapest: Solution,
    gap: float | None = None,
    time_limit_s: float | None = None,
    *,
    solve: Solve | None = None,
    value: Callable[[Plan], float] = lambda plan: plan.counted_usd_per_h,
    names: Collection[str] | None = None,
    nearest: bool = True,
    thorough: bool = True,
    weigh: bool = True,
    progress: Progress = no_progress,
) -> Planned:
    """Replace the cheapest plan if necessary: by one in time, or by a more accurate one of equal cost.

    Where p99 targets are soft, by the one of least `value` and penalties of the workflows `names` (None: all). A
    plan of equal cost is only sought without a time limit. `gap`: also the saving left for soft targets. `solve`: how
    other plans are found, if not anew. `nearest`, `thorough`: as in `in_time`. `weigh`: as in `plan_project`.
    """
    anew = planned_anew(DEFAULT_GAP if gap is None else gap, cheapest)
    is_soft = weigh and bool(soft_targets(problem))
    with limited_work(time_limit_s, time.monotonic) as clock:
        part_s = clock.share(SEARCH_PART_BESIDE_SOFT if is_soft else 1.0).left()
        settled = in_time(
            problem, cheapest, solve or anew, part_s, thorough=thorough, nearest=nearest, progress=progress
        )
        plan = settled.solution.plan
        if plan is None or settled.reasons:
            return settled
        if settled.solution is cheapest and solve is None and clock.left() is None:
            better = more_accurate(problem, cheapest)
            if better is not cheapest and better.plan is not None:
                settled = Planned(problem, better, judged=judged_latency(better.plan))
        if is_soft and problem.objective is Objective.COST:  # what counts beside it is told where that is minimised
            search = SoftSearch(
                problem, settled.solution, solve or anew, clock, progress,
                tolerance=TOLERANCE if gap is None else gap, value=value, names=names,
            )  # fmt: skip
            search.run()
            settled = search.result(settled)
        elif is_soft:
            settled = replace(settled, judged=judged_latency(plan))
        if settled.judged is None or settled.judged.kept or not thorough:
            return settled
        return replace(settled, reasons=(settled.judged.text,))


def more_accurate(problem: Problem, solution: Solution) -> Solution:
    """Break ties: the most accurate of the plans of the same cost, which may use workers that are paid for anyway.

    Returns `solution` unchanged if it is not proven optimal, for large fleets, and for several workflows, because their
    accuracies cannot be compared.
    """
    best, proof, budget = solution.plan, solution.certificate, problem.slo.budget_usd_per_h
    is_whole = problem.is_for_ways or problem.workflows
    if best is None or proof is None or not proof.is_optimal or is_whole or is_large(Network(problem)):
        return solution
    budget = min(cost_of(best) * (1 + VALUE_TOLERANCE), math.inf if budget is None else budget)
    while best.accuracy is not None:
        slo = replace(problem.slo, accuracy=best.accuracy + ACCURACY_TOLERANCE, budget_usd_per_h=budget)
        try:
            plan = solve_with(replace(problem, slo=slo), SolveOptions(explained=False)).plan
        except SolverError:
            break
        if plan is None or check_latency(plan := replace(plan, slo=problem.slo)) is not None:
            break
        best = replace(plan, certificate=replace(proof, objective=cost_of(plan), bound=cost_of(plan)))
    return solution if best is solution.plan else replace(solution, plan=best)


def _compared(problem: Problem, plan: Plan, gap: float | None, limit: Clock) -> tuple[Baseline, ...]:
    """The baselines, which serve what the plan serves, each with a note if its plan misses a p99 target.

    Those of a plan that may mix variants give every request one selection, of the mean accuracy.
    """
    left_s, gap = limit.left(), DEFAULT_GAP if gap is None else gap
    limit_s = BASELINE_S if left_s is None else left_s / 2
    whole = served(problem, plan)
    whole = replace(whole, workflows=tuple(replace(one, worth_usd_per_h=None) for one in whole.workflows))
    plain, solved = without_forms(whole), list[Baseline]()
    if problem.has_forms:
        solved.append(_solved(plain, f"no {kinds_text(problem)}", gap, limit_s, thorough=True))
    if plain.may_mix:
        plain = of_one_selection(plain)
        solved.append(_solved(plain, "one variant for all requests", gap, limit_s, thorough=False))
    rules = baselines(plain, gap=gap, time_limit_s=limit_s, clock=time.monotonic)
    return tuple(_with_latency_note(rule, plan) for rule in (*solved, *rules))


def _solved(problem: Problem, name: str, gap: float, limit_s: float, *, thorough: bool) -> Baseline:
    """Baseline: the cheapest plan of a problem that meets the p99 target."""
    try:
        solve = planned_anew(gap)
        found = in_time(problem, solve(problem, None, limit_s), solve, limit_s, thorough=thorough)
    except SolverError as error:
        return Baseline(name, "time_limit", note=str(error))
    plan = found.solution.plan
    if plan is None or found.reasons:
        return Baseline(name, "infeasible", note=(*found.reasons, "infeasible")[0])
    return Baseline(name, found.solution.status, plan.cost, plan.accuracy, plan.selection)


def _with_latency_note(baseline: Baseline, plan: Plan) -> Baseline:
    """The baseline, with a note added if its plan misses a p99 latency target.

    One that costs more than `plan` is simulated only once, because `plan` is better in any case.
    """
    cost = baseline.cost_usd_per_h
    if not latency_targets(plan) or baseline.note or cost is None:
        return baseline
    is_cheaper = cost < cost_of(plan) * (1 - SAME)
    for own in baseline.plans:
        judged = judge(own, whole=True) if is_cheaper else judge(own, most=1)
        if judged is not None and not judged.kept:
            prefix = f"{own.name}: " if len(baseline.plans) > 1 else ""
            return replace(baseline, status="limit_broken", note=prefix + judged.text.rpartition(" (")[0])
    return baseline


def require_plan(planned: Planned, note: str = "") -> Plan:
    """Return the plan; InfeasibleError with the reasons if there is none."""
    if planned.plan is None:
        raise InfeasibleError(planned.reasons, note)
    return planned.plan
