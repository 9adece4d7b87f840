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
from jellybean.documents.units import DURATION, format_quantity, rounded_up
from jellybean.errors import InfeasibleError, JellyBeanError
from jellybean.folders import state_folder
from jellybean.simulation import latency_breach, latency_targets
from jellybean_agent.errors import in_words
from jellybean_solver.baselines import Baseline, baselines
from jellybean_solver.cuts import Cuts, solve_cut
from jellybean_solver.deadlines import deadline_s, shares
from jellybean_solver.errors import SolverError
from jellybean_solver.infeasible import Infeasibility
from jellybean_solver.large import GAP
from jellybean_solver.plan import PLAN_VERSION, Plan
from jellybean_solver.plan_document import PlanDocumentError, content_hash, encode, from_document, to_document
from jellybean_solver.problem import Problem
from jellybean_solver.solve import Solution, solve

PLAN_FILE = "plan.json"
TIGHTER = (1.0, 0.8, 0.6)  # of the p99 latency, asked of the solver in turn: simulated queues may be longer
LONGER = (2.0, 1.5, 1.2)  # likewise, where the gap is wide: simulated queues may be shorter, too
FAR, SAME = 0.05, 1e-6  # gaps from which on that is tried; costs that are the same
LOOSER = (0.2, 0.5, 0.8)  # of the way from the target to the cheapest plan's p99, by ratio
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
    gap: float = GAP,
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
    cheapest = solution
    solution, reasons, nearest_p99_s = _in_time(problem, cuts, cheapest, gap, left_s)
    if solution is not cheapest:  # solved again; else only simulated
        solve_s = time.perf_counter() - started
    plan = solution.plan if not reasons else None
    tell(2, 3, "what to compare it to")
    found: tuple[Baseline, ...] = ()
    if compare and plan is not None:
        limit_s = BASELINE_S if time_limit_s is None else BASELINE_SHARE * time_limit_s
        found = baselines(problem, gap=gap, time_limit_s=limit_s, clock=time.monotonic)
        if cuts:
            whole = partial(_in_time, problem, {}, gap=gap, time_limit_s=limit_s)
            found = (_all_whole(problem, gap, limit_s, whole), *found)
    if plan is not None:
        found = tuple(_late_too(one, plan) for one in found)
    tell(3, 3, "done")
    return Planned(problem, solution, plan, reasons, found, solve_s, nearest_p99_s, cuts)


def _late_too(baseline: Baseline, plan: Plan) -> Baseline:
    """A baseline that is cheaper than a plan which must keep a p99 latency, with what it does to that latency."""
    cost = baseline.cost_usd_per_h
    if not latency_targets(plan) or baseline.note or cost is None or cost >= _cost(plan) * (1 - SAME):
        return baseline
    if baseline.plan is None:
        return replace(baseline, status="limit_broken", note="nobody looked at its p99 latencies")
    breach = latency_breach(baseline.plan)
    if breach is None:
        return baseline
    return replace(baseline, status="limit_broken", note=breach.text.partition(" (")[0])


def _all_whole(
    problem: Problem,
    gap: float,
    time_limit_s: float,
    in_time: Callable[[Solution], tuple[Solution, tuple[str, ...], float | None]],
) -> Baseline:
    """The plan without any cut, checked as the plan itself is."""
    name = "all models whole"
    try:
        first = solve(problem, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic, explained=False)
        solution, reasons, _ = in_time(first)
    except SolverError as error:
        return Baseline(name, "time_limit", None, None, None, str(error))
    plan = solution.plan
    if plan is None:
        reasons = reasons or ("infeasible",)
    if plan is None or reasons:
        return Baseline(name, "infeasible", None, None, None, reasons[0])
    return Baseline(name, solution.status, plan.cost, plan.accuracy, plan.selection, "")


def _in_time(
    problem: Problem, cuts: Cuts, solution: Solution, gap: float, time_limit_s: float | None
) -> tuple[Solution, tuple[str, ...], float | None]:
    """A solution whose plan keeps the p99 latency in simulation; else why there is none, and the p99 nearest to it."""
    target_s = deadline_s(problem)
    reasons = solution.infeasibility.reasons if solution.infeasibility is not None else ()
    if solution.plan is None or target_s is None or (breach := latency_breach(solution.plan)) is None:
        return solution, reasons, None
    solved = partial(solve_cut, problem, cuts, gap=gap, time_limit_s=time_limit_s, clock=time.monotonic)
    search = _SimulatedInTime(solved, target_s, breach.share, solution.plan)
    found = search.run(LONGER if time_limit_s is None else ())
    if found is not None:
        return found, (), None
    nearest = search.nearest
    kept = {name: rounded_up(DURATION, nearest * share * target_s) for name, share in shares(problem).items()}
    paths = {name: f"{name}.slo.latency_p99" if name else "slo.latency_p99" for name in kept}
    settings = (f"{paths[name]}={format_quantity(DURATION, seconds)}" for name, seconds in kept.items())
    verb = "is" if len(kept) == 1 else "are"
    told = f"nearest: {', '.join(settings)} {verb} kept by a plan for {_cost(search.fastest):.4g} USD/h"
    return solution, (breach.text, *(reasons or search.reasons), told), kept.get("")


class _SimulatedInTime:
    """Asks the solver for plans under shares of a p99 and simulates them. `nearest`: the least share that one keeps."""

    def __init__(self, solved: Callable[..., Solution], target_s: float, nearest: float, fastest: Plan) -> None:
        self.solved, self.target_s, self.nearest, self.fastest = solved, target_s, nearest, fastest
        self.first = nearest
        self.late = [fastest]  # plans known to break it
        self.reasons: tuple[str, ...] = ()

    def run(self, longer: tuple[float, ...]) -> Solution | None:
        """The cheapest found that keeps the p99."""
        best = next((found for share in TIGHTER if (found := self._kept(share)) is not None), None)
        if best is None or best.certificate is None or best.certificate.gap > FAR:
            below = _cost(best.plan) * (1 - SAME) if best is not None and best.plan is not None else math.inf
            best = next(
                (found for share in longer if (found := self._kept(share, below, near=False)) is not None), best
            )
        if best is None:
            looser = (self.first**share for share in LOOSER)
            best = next((found for share in looser if (found := self._kept(share)) is not None), None)
        return best

    def _kept(self, share: float, below_usd_per_h: float = math.inf, *, near: bool = True) -> Solution | None:
        """A solution under a share of the p99 whose plan keeps all of it, and costs less than that.

        `near`: else remember what it keeps; not where asking for just that would not find it again.
        """
        try:
            found = self.solved(p99_s=share * self.target_s)
        except SolverError as error:
            self.reasons = self.reasons or (str(error),)
            return None
        if found.plan is None:
            self.reasons = self.reasons or (found.infeasibility.reasons if found.infeasibility is not None else ())
            return None
        if _cost(found.plan) >= below_usd_per_h or any(_same(found.plan, late) for late in self.late):
            return None
        breach = latency_breach(found.plan)
        if breach is None:
            return found
        self.late.append(found.plan)
        if near and breach.share < self.nearest:
            self.nearest, self.fastest = breach.share, found.plan
        return None


def _same(one: Plan, other: Plan) -> bool:
    """Whether two plans run alike, whatever is proven of them."""
    return replace(one, certificate=other.certificate) == other


def _cost(plan: Plan) -> float:
    return plan.cost.total_usd_per_h


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
        raise JellyBeanError(f"{path}: cannot be read as a plan: {in_words(error)}{hint}") from error
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
    if proof.termination == "optimal":
        return None
    why = "a time limit stopped its search" if proof.termination == "time_limit" else "its search stopped at that gap"
    if proof.bound <= 0:
        return f"nothing is proven about the cost of this plan: {why}"
    return f"this plan may cost up to {proof.objective / proof.bound - 1.0:.2%} more than the optimum: {why}"


def problem_key(problem: Problem, cuts: Cuts) -> str:
    """Content hash of a problem: tells whether a plan still answers the documents, in a version that can be read."""
    return content_hash({"plan_version": PLAN_VERSION, "problem": encode(problem), "cuts": encode(cuts)})


def _key_path(directory: Path) -> Path:
    return state_folder(directory) / "plan.key"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
