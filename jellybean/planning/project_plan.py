"""Plan a project: from documents to a validated plan, and the plan file DIR/plan.json.

The cheapest plan is simulated first. If it misses a p99 latency target, the solver searches with its own latency
estimate, and its plans are simulated too: a plan that misses a target in simulation is never returned.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jellybean.documents import AnyProject, build_cuts, build_problem
from jellybean.errors import InfeasibleError, InputError, JellyBeanError
from jellybean.folders import state_folder
from jellybean.planning.nearest_latency import SAME
from jellybean.planning.predicted_latency import (
    Judged,
    judged_latency,
    latency_breach,
    latency_targets,
    quick_judgement,
)
from jellybean.planning.simulated_deadline import InTime, cost_of, in_time
from jellybean.serving.errors import NotRunningError, RequestError
from jellybean.serving.run_state import running_state
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
    SolveOptions,
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
RUNNING = "running"  # given instead of a file name, it means the plan that is being served
ACCURACY_TOLERANCE = 1e-6  # percentage points: accuracies closer than this are equal
BASELINE_S = 5.0  # time limit of each baseline, if the plan has no time limit
CHEAPEST_PERCENT, BASELINES_PERCENT = 10.0, 90.0  # of the progress: the search in between takes longest
_STATUS_S = 5.0  # longest wait for the gateway's status
BASELINE_SHARE = 0.25  # time limit of each baseline, as a share of the plan's time limit

Progress = Callable[[float, float, str], None]  # progress callback with the arguments done, total, label


@dataclass(frozen=True)
class Planned:
    """The result of planning a project. `plan` is None if no plan meets the targets; then `reasons` says why.

    `problem` has whole models only, even if the plan splits some in two. `solve_s`: time of the search in seconds.
    """

    problem: Problem
    solution: Solution
    plan: Plan | None
    reasons: tuple[str, ...]
    baselines: tuple[Baseline, ...]
    solve_s: float
    nearest_p99_s: float | None = None  # p99 latency of the fastest rejected plan
    cuts: Cuts = field(default_factory=dict)  # operator -> cuts of its models that the search could choose
    judged: Judged | None = None  # the plan's predicted p99 latencies, if it has p99 targets
    cheapest: tuple[Plan, Judged] | None = None  # the cheapest plan, if it was rejected for its p99 latency

    @property
    def status(self) -> str:
        """`infeasible`, or the solver's termination: `optimal`, `gap` or `time_limit`."""
        return self.solution.status if self.plan is not None else "infeasible"

    @property
    def infeasibility(self) -> Infeasibility | None:
        return self.solution.infeasibility

    @property
    def comparison(self) -> tuple[tuple[str, float | None, str], ...]:
        """The baselines as (name, USD/h or None if infeasible, note)."""
        return tuple((baseline.name, baseline.cost_usd_per_h, baseline.note) for baseline in self.baselines)


def plan_project(
    project: AnyProject,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    compare: bool = True,
    progress: Progress | None = None,
) -> Planned:
    """Solve, then check the p99 latency by simulation. An infeasible problem is a result, not an exception.

    `compare`: also solve the baselines, each within a quarter of the time limit, or 5 seconds without one.
    """
    report = progress or (lambda done, total, label: None)
    report(0, 100, "cheapest plan")
    problem, cuts = build_problem(project), build_cuts(project)
    started = time.perf_counter()
    solution = solve_cut(problem, cuts, SolveOptions(gap, time_limit_s, time.monotonic))
    solve_s = time.perf_counter() - started
    report(CHEAPEST_PERCENT, 100, "p99 latency")
    left_s = None if time_limit_s is None else max(1.0, time_limit_s - solve_s)
    gap = DEFAULT_GAP if gap is None else gap  # for the many solves of the deadline search, and for the baselines

    def searched(done: float, total: float, label: str) -> None:
        report(CHEAPEST_PERCENT + (BASELINES_PERCENT - CHEAPEST_PERCENT) * done / total, 100, label)

    settled = settle(problem, cuts, solution, gap, left_s, progress=searched)
    if settled.solution is not solution:  # if the cheapest plan stays, its simulation does not count as search time
        solve_s = time.perf_counter() - started
    solution, reasons = settled.solution, settled.reasons
    plan = solution.plan if not reasons else None
    report(BASELINES_PERCENT, 100, "baselines")
    compared: tuple[Baseline, ...] = ()
    if compare and plan is not None:
        limit_s = BASELINE_S if time_limit_s is None else BASELINE_SHARE * time_limit_s
        compared = baselines(problem, gap=gap, time_limit_s=limit_s, clock=time.monotonic)
        if cuts:
            keep_deadline = partial(in_time, problem, {}, gap=gap, time_limit_s=limit_s)
            compared = (_without_cuts(problem, gap, limit_s, keep_deadline), *compared)
    if plan is not None:
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
        cuts,
        settled.judged,
        settled.cheapest if not reasons else None,
    )


def _with_latency_note(baseline: Baseline, plan: Plan) -> Baseline:
    """The baseline, with a note added if its plan misses a p99 latency target.

    A baseline that costs more than `plan` is simulated only once, because `plan` is better in any case.
    """
    cost = baseline.cost_usd_per_h
    if not latency_targets(plan) or baseline.note or cost is None:
        return baseline
    cheaper = cost < cost_of(plan) * (1 - SAME)
    for own in baseline.plans:
        breach = latency_breach(own) if cheaper else quick_judgement(own, most=1)
        if breach is not None and not breach.kept:
            prefix = f"{own.name}: " if len(baseline.plans) > 1 else ""
            return replace(baseline, status="limit_broken", note=prefix + breach.text.rpartition(" (")[0])
    return baseline


def _without_cuts(
    problem: Problem,
    gap: float,
    time_limit_s: float,
    keep_deadline: Callable[[Solution], InTime],
) -> Baseline:
    """Baseline: the cheapest plan without cut models. `keep_deadline` makes it meet the p99 target."""
    name = "no model cut"
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
    cuts: Cuts,
    cheapest: Solution,
    gap: float,
    time_limit_s: float | None,
    *,
    thorough: bool = True,
    progress: Progress = lambda done, total, label: None,
) -> InTime:
    """Replace the cheapest plan if necessary: by one that meets the p99 target, or by a more accurate one.

    A more accurate plan has the same cost and is only sought without a time limit.
    """
    found = in_time(problem, cuts, cheapest, gap, time_limit_s, thorough=thorough, progress=progress)
    if found.solution is not cheapest or cheapest.plan is None or found.reasons or time_limit_s is not None:
        return found
    better = more_accurate(problem, cuts, cheapest)
    if better is cheapest or better.plan is None:
        return found
    return InTime(better, judged=judged_latency(better.plan))


def more_accurate(problem: Problem, cuts: Cuts, solution: Solution) -> Solution:
    """Find the most accurate plan of the same cost, which may use spare capacity of workers that are paid for anyway.

    Returns `solution` unchanged if it is not proven optimal, for large fleets, and for several workflows, because
    their accuracies cannot be compared.
    """
    plan, proof = solution.plan, solution.certificate
    if plan is None or proof is None or not proof.is_optimal or plan.accuracy is None:
        return solution
    if problem.workflows or is_large(Network(problem)):
        return solution
    budget = min(cost_of(plan) * (1 + VALUE_TOLERANCE), problem.slo.budget_usd_per_h or math.inf)
    best = solution
    while best.plan is not None and best.plan.accuracy is not None:
        slo = replace(problem.slo, accuracy=best.plan.accuracy + ACCURACY_TOLERANCE, budget_usd_per_h=budget)
        try:
            found = solve_cut(replace(problem, slo=slo), cuts, SolveOptions(explained=False))
        except SolverError:
            break
        if found.plan is None or latency_breach(kept := replace(found.plan, slo=problem.slo)) is not None:
            break
        objective = cost_of(kept)
        kept = replace(kept, certificate=replace(proof, objective=objective, bound=objective))
        best = Solution(solution.status, kept, None, solution.selections_tried, kept.certificate)
    return best


def require_plan(planned: Planned, note: str = "") -> Plan:
    """Return the plan; InfeasibleError with the reasons if there is none."""
    if planned.plan is None:
        raise InfeasibleError(planned.reasons, note)
    return planned.plan


def save_plan(project: AnyProject, planned: Planned) -> dict[str, Any]:
    """Write DIR/plan.json atomically, and the content hash of the problem that it solves; returns the plan document."""
    return write_plan(project.directory, to_document(require_plan(planned)), planned.problem, planned.cuts)


def write_plan(directory: Path, document: dict[str, Any], problem: Problem, cuts: Cuts) -> dict[str, Any]:
    """Write a plan document to DIR/plan.json, recorded as the solution of `problem`; returns the document unchanged."""
    write_plan_file(directory / PLAN_FILE, document)
    _write(_key_path(directory), problem_key(problem, cuts))
    return document


def write_plan_file(path: Path, document: dict[str, Any]) -> None:
    """Write a plan document to a file, atomically."""
    _write(path, json.dumps(document, indent=1) + "\n")


def load_plan(directory: Path) -> Plan:
    """Load the plan in DIR/plan.json."""
    return read_document(directory / PLAN_FILE, f"; run: jellybean plan {directory}")[1]


def read_document(path: Path, hint: str = "") -> tuple[dict[str, Any], Plan]:
    """The document in a plan file and the plan; without `hint` the file was named by the user.

    JellyBeanError, with `hint` appended to its message, if the file is not a plan; InputError without a hint.
    """
    kind = JellyBeanError if hint else InputError
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        missing = "there is no plan yet" if hint else "file not found"
        raise kind(f"{path}: {missing}{hint}") from error
    except (OSError, ValueError) as error:
        raise kind(f"{path}: cannot be read as a plan: {describe_error(error)}{hint}") from error
    if not isinstance(document, dict):
        raise kind(f"{path}: is not a plan{hint}")
    try:
        return document, from_document(document)
    except PlanDocumentError as error:
        raise kind(f"{path}: {error}{hint}") from error


def current_plan(project: AnyProject) -> tuple[Plan, str]:
    """The plan for the current documents, and the reason why it was planned again (empty if plan.json is up to date).

    InfeasibleError if no plan meets the current documents' targets; the outdated plan is not returned.
    """
    reason = _outdated(project.directory, problem_key(build_problem(project), build_cuts(project)))
    if not reason:
        return load_plan(project.directory), ""
    planned = plan_project(project, compare=False)
    plan = require_plan(planned, kept_plan(project.directory, outdated=True))
    before = _hash_of(project.directory / PLAN_FILE)
    served = replaces_served_plan(project.directory, to_document(plan))
    document = save_plan(project, planned)
    if document["hash"] == before:
        return plan, ""
    wrote = f"{reason}: planned again and wrote {project.directory / PLAN_FILE}"
    return plan, "\n".join(filter(None, (wrote, served)))


def _outdated(directory: Path, key: str) -> str:
    """Why DIR/plan.json was not made for the problem with this content hash; empty if it was."""
    if not (directory / PLAN_FILE).exists():
        return f"{PLAN_FILE} did not exist"
    try:
        known = _key_path(directory).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return f"it is unknown for which documents {PLAN_FILE} was made"
    if known != key:
        return (
            f"{PLAN_FILE} was made for other documents or --set options (options apply to one command: give them again)"
        )
    return ""


def _hash_of(path: Path) -> str | None:
    """The hash stated in a plan file; None if there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document.get("hash") if isinstance(document, dict) else None


def replaces_served_plan(directory: Path, document: Mapping[str, Any]) -> str:
    """A sentence for the user if DIR/plan.json has the plan that is served, and `document` is another; else empty.

    The gateway says which plan it serves: an `apply` from elsewhere changes it. Empty if it does not answer.
    """
    try:
        running_state(directory.resolve())
        from jellybean.serving.client import Client  # gRPC only where a run is up

        with Client.of(directory.resolve(), timeout_s=_STATUS_S) as client:
            served = client.status().plan
    except (NotRunningError, RequestError):
        return ""
    if _hash_of(directory / PLAN_FILE) != served or document["hash"] == served:
        return ""
    return (
        f"{directory / PLAN_FILE} had the plan that is served, {served[:12]}, which stays served until "
        f"`jellybean apply` with the same options; `jellybean diff {directory} {RUNNING}` compares the two"
    )


def kept_plan(directory: Path, *, outdated: bool) -> str:
    """A sentence that tells the user that DIR/plan.json was not replaced; empty if that file does not exist.

    `outdated`: the file was made for other documents or options.
    """
    path = directory / PLAN_FILE
    if not path.exists():
        return ""
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    note = ", which does not match these documents and options" if outdated else ""
    return f"{path} still has the plan of {date}{note}"


def unproven(plan: Plan) -> str | None:
    """A warning if the plan is not proven optimal; None if it is."""
    proof = plan.certificate
    if proof.is_optimal:
        return None
    limited = proof.termination == Termination.TIME_LIMIT
    why = "the search reached its time limit" if limited else "the search stopped at this gap"
    if proof.bound <= 0:
        return f"no lower bound on the cost was proven: {why}"
    return f"the optimum may cost up to {proof.gap:.2%} less than this plan: {why}"


def problem_key(problem: Problem, cuts: Cuts) -> str:
    """Content hash of a problem and the plan format version, to detect plans that no longer match the documents."""
    return plan_format.content_hash(
        {"plan_version": plan_format.VERSION, "problem": json_values(problem), "cuts": json_values(cuts)}
    )


def _key_path(directory: Path) -> Path:
    return state_folder(directory) / "plan.key"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
