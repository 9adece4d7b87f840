"""From documents to a checked plan, and the plan file of a project.

The cheapest plan is simulated: where it keeps the p99 latency, no other need be sought. Where it does not, the solver
is asked for one that does by its own estimate of latency, and that one is simulated too, so that a plan that would
break an SLO is refused rather than handed on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jellybean.documents import AnyProject, build_cuts, build_problem
from jellybean.errors import InfeasibleError, JellyBeanError
from jellybean.folders import state_folder
from jellybean.planning.simulated_deadline import SAME, InTime, cost_of, in_time
from jellybean.planning.simulation import SEEDS, Judged, judged_latency, latency_breach, latency_targets
from jellybean_agent import describe_error
from jellybean_protos import plan_format
from jellybean_solver import (
    DEFAULT_GAP,
    VALUE_TOLERANCE,
    Baseline,
    Cuts,
    Infeasibility,
    Network,
    Plan,
    PlanDocumentError,
    Problem,
    Solution,
    SolverError,
    Termination,
    baselines,
    from_document,
    is_large,
    json_values,
    solve,
    solve_cut,
    to_document,
)

PLAN_FILE = "plan.json"
MORE_ACCURATE = 1e-6  # percent points: accuracies closer than this are one
BASELINE_S = 5.0  # for each figure to compare a plan to, where no time limit says otherwise
BASELINE_SHARE = 0.25  # of the time limit

Progress = Callable[[float, float, str], None]  # done, total, label


@dataclass(frozen=True)
class Planned:
    """What planning a project gave. `plan` is None when no plan meets the targets; `reasons` then says why.

    `problem` has all models whole, also where the plan cuts some.
    """

    problem: Problem
    solution: Solution
    plan: Plan | None
    reasons: tuple[str, ...]
    baselines: tuple[Baseline, ...]
    solve_s: float
    nearest_p99_s: float | None = None  # an SLO that the plan refused for its p99 latency would keep
    cuts: Cuts = field(default_factory=dict)  # that the plan might use
    judged: Judged | None = None  # the plan's simulated p99 latencies, where it is asked for any
    cheapest: tuple[Plan, Judged] | None = None  # a plan that this one is not, for its p99

    @property
    def status(self) -> str:
        """infeasible, or why the solver stopped: optimal, gap or time_limit."""
        return self.solution.status if self.plan is not None else "infeasible"

    @property
    def infeasibility(self) -> Infeasibility | None:
        return self.solution.infeasibility

    @property
    def comparison(self) -> tuple[tuple[str, float | None, str], ...]:
        """What the plan is compared to: (name, USD/h or None when infeasible, note)."""
        return tuple((found.name, found.cost_usd_per_h, found.note) for found in self.baselines)


def plan_project(
    project: AnyProject,
    *,
    gap: float = DEFAULT_GAP,
    time_limit_s: float | None = None,
    compare: bool = True,
    progress: Progress | None = None,
) -> Planned:
    """Solve, then check the latency SLO on the plan. Never raises for an infeasible problem: that is an answer.

    `compare`: solve the baselines too, each in at most a quarter of the time limit, or 5 seconds without one.
    """
    tell = progress or (lambda done, total, label: None)
    tell(0, 3, "the cheapest plan")
    problem, cuts = build_problem(project), build_cuts(project)
    started = time.perf_counter()
    solution = solve_cut(problem, cuts, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic)
    solve_s = time.perf_counter() - started
    tell(1, 3, "p99 latency")
    left_s = None if time_limit_s is None else max(1.0, time_limit_s - solve_s)
    settled = settle(problem, cuts, solution, gap, left_s)
    if settled.solution is not solution:  # solved again; else only simulated
        solve_s = time.perf_counter() - started
    solution, reasons = settled.solution, settled.reasons
    plan = solution.plan if not reasons else None
    tell(2, 3, "what to compare it to")
    found: tuple[Baseline, ...] = ()
    if compare and plan is not None:
        limit_s = BASELINE_S if time_limit_s is None else BASELINE_SHARE * time_limit_s
        found = baselines(problem, gap=gap, time_limit_s=limit_s, clock=time.monotonic)
        if cuts:
            whole = partial(in_time, problem, {}, gap=gap, time_limit_s=limit_s)
            found = (_all_whole(problem, gap, limit_s, whole), *found)
    if plan is not None:
        found = tuple(_late_too(one, plan) for one in found)
    tell(3, 3, "done")
    return Planned(
        problem,
        solution,
        plan,
        reasons,
        found,
        solve_s,
        settled.nearest_p99_s,
        cuts,
        settled.judged,
        settled.cheapest if not reasons else None,
    )


def _late_too(baseline: Baseline, plan: Plan) -> Baseline:
    """A baseline beside a plan that must keep a p99 latency: with what it does to that latency, where it breaks it.

    One that is dearer is simulated once: it is beaten either way.
    """
    cost = baseline.cost_usd_per_h
    if not latency_targets(plan) or baseline.note or cost is None:
        return baseline
    seeds = SEEDS if cost < cost_of(plan) * (1 - SAME) else 1
    for own in baseline.plans:
        if (breach := latency_breach(own, seeds=seeds)) is not None:
            of = f"{own.name}: " if len(baseline.plans) > 1 else ""
            return replace(baseline, status="limit_broken", note=of + breach.text.partition(" (")[0])
    return baseline


def _all_whole(
    problem: Problem,
    gap: float,
    time_limit_s: float,
    in_time: Callable[[Solution], InTime],
) -> Baseline:
    """The plan without any cut, checked as the plan itself is."""
    name = "all models whole"
    try:
        first = solve(problem, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic, explained=False)
        found = in_time(first)
    except SolverError as error:
        return Baseline(name, "time_limit", None, None, None, str(error))
    plan = found.solution.plan
    if plan is None or found.reasons:
        return Baseline(name, "infeasible", None, None, None, (*found.reasons, "infeasible")[0])
    return Baseline(name, found.solution.status, plan.cost, plan.accuracy, plan.selection, "")


def settle(
    problem: Problem, cuts: Cuts, cheapest: Solution, gap: float, time_limit_s: float | None, *, thorough: bool = True
) -> InTime:
    """What becomes of the cheapest plan: one that keeps the p99 latency, or one as cheap and more accurate."""
    found = in_time(problem, cuts, cheapest, gap, time_limit_s, thorough=thorough)
    if found.solution is not cheapest or cheapest.plan is None or found.reasons or time_limit_s is not None:
        return found
    better = more_accurate(problem, cuts, cheapest)
    if better is cheapest or better.plan is None:
        return found
    return InTime(better, judged=judged_latency(better.plan))


def more_accurate(problem: Problem, cuts: Cuts, solution: Solution) -> Solution:
    """The most accurate of the plans that cost the same, as workers that are paid may have time to spare.

    Not on large fleets, nor for several workflows, whose accuracies no one order compares.
    """
    plan, proof = solution.plan, solution.certificate
    if plan is None or proof is None or not proof.is_optimal or plan.accuracy is None:
        return solution
    if problem.workflows or is_large(Network(problem)):
        return solution
    budget = min(cost_of(plan) * (1 + VALUE_TOLERANCE), problem.slo.budget_usd_per_h or math.inf)
    best = solution
    while best.plan is not None and best.plan.accuracy is not None:
        slo = replace(problem.slo, accuracy=best.plan.accuracy + MORE_ACCURATE, budget_usd_per_h=budget)
        try:
            found = solve_cut(replace(problem, slo=slo), cuts, explained=False)
        except SolverError:
            break
        if found.plan is None or latency_breach(kept := replace(found.plan, slo=problem.slo)) is not None:
            break
        objective = cost_of(kept)
        kept = replace(kept, certificate=replace(proof, objective=objective, bound=objective))
        best = Solution(solution.status, kept, None, solution.selections_tried, kept.certificate)
    return best


def require_plan(planned: Planned, note: str = "") -> Plan:
    """The plan, or InfeasibleError with the reasons."""
    if planned.plan is None:
        raise InfeasibleError(planned.reasons, note)
    return planned.plan


def save_plan(project: AnyProject, planned: Planned) -> dict[str, Any]:
    """Write DIR/plan.json atomically, with the hash of the problem it answers; returns the document."""
    return write_plan(project.directory, to_document(require_plan(planned)), planned.problem, planned.cuts)


def write_plan(directory: Path, document: dict[str, Any], problem: Problem, cuts: Cuts) -> dict[str, Any]:
    """Write a plan document to DIR/plan.json as it is, as the answer to a problem; returns it."""
    _write(directory / PLAN_FILE, json.dumps(document, indent=1) + "\n")
    _write(_key_path(directory), problem_key(problem, cuts))
    return document


def load_plan(directory: Path) -> Plan:
    """The plan in DIR/plan.json."""
    return read_plan(directory / PLAN_FILE, f"; run: jellybean plan {directory}")


def read_plan(path: Path, hint: str = "") -> Plan:
    """The plan in a file. JellyBeanError when it holds none, with the `hint` behind it."""
    return read_document(path, hint)[1]


def read_document(path: Path, hint: str = "") -> tuple[dict[str, Any], Plan]:
    """A plan file as it was written, and the plan; otherwise as `read_plan`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        missing = "there is no plan yet" if hint else "there is no such file"
        raise JellyBeanError(f"{path}: {missing}{hint}") from error
    except (OSError, ValueError) as error:
        raise JellyBeanError(f"{path}: cannot be read as a plan: {describe_error(error)}{hint}") from error
    if not isinstance(document, dict):
        raise JellyBeanError(f"{path}: holds no plan{hint}")
    try:
        return document, from_document(document)
    except PlanDocumentError as error:
        raise JellyBeanError(f"{path}: {error}{hint}") from error


def current_plan(project: AnyProject) -> tuple[Plan, str]:
    """The plan of the project as its documents stand; why it was made anew and written, or nothing when it was not.

    InfeasibleError when there is no plan any more: the old one is not handed out for documents that it does not answer.
    """
    why = _outdated(project.directory, problem_key(build_problem(project), build_cuts(project)))
    if not why:
        return load_plan(project.directory), ""
    planned = plan_project(project, compare=False)
    plan = require_plan(planned, kept_plan(project.directory, outdated=True))
    before = _hash_of(project.directory / PLAN_FILE)
    document = save_plan(project, planned)
    if document["hash"] == before:
        return plan, ""
    return plan, f"{why}: planned anew and wrote {project.directory / PLAN_FILE}"


def _outdated(directory: Path, key: str) -> str:
    """Why DIR/plan.json does not answer a problem; empty when it does."""
    if not (directory / PLAN_FILE).exists():
        return f"there was no {PLAN_FILE}"
    try:
        known = _key_path(directory).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return f"for which documents {PLAN_FILE} was made was not known"
    if known != key:
        return (
            f"{PLAN_FILE} was made for other documents or other --set options (they last for one command: give them "
            "again)"
        )
    return ""


def _hash_of(path: Path) -> str | None:
    """The hash of a plan file as it states it; None when it states none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("hash") if isinstance(found, dict) else None


def kept_plan(directory: Path, *, outdated: bool) -> str:
    """A sentence on the plan that DIR/plan.json holds still, of use when there is no new one; empty without one."""
    path = directory / PLAN_FILE
    if not path.exists():
        return ""
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    more = ", which does not answer these documents and options" if outdated else ""
    return f"{path} still holds the plan of {date}{more}"


def unproven(plan: Plan) -> str | None:
    """A sentence on a plan that is not proven optimal; None for one that is."""
    proof = plan.certificate
    if proof.is_optimal:
        return None
    late = proof.termination == Termination.TIME_LIMIT
    why = "a time limit stopped its search" if late else "its search stopped at that gap"
    if proof.bound <= 0:
        return f"nothing is proven about the cost of this plan: {why}"
    return f"the cheapest plan may cost up to {proof.gap:.2%} less than this one: {why}"


def problem_key(problem: Problem, cuts: Cuts) -> str:
    """Content hash of a problem: tells whether a plan still answers the documents, in a version that can be read."""
    return plan_format.content_hash(
        {"plan_version": plan_format.VERSION, "problem": json_values(problem), "cuts": json_values(cuts)}
    )


def _key_path(directory: Path) -> Path:
    return state_folder(directory) / "plan.key"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
