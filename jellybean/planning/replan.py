"""Re-plan a project, starting from a running plan or a plan file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jellybean.documents import AnyProject, build_problem, require_folder
from jellybean.folders import shell_text
from jellybean.planning.deadline.after_losses import breach_after_loss
from jellybean.planning.deadline.predicted_latency import Judged, judged_latency, latency_breach, latency_targets
from jellybean.planning.deadline.simulation_judge import multiple_of_target
from jellybean.planning.deadline.soft_change import change_with_penalties
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean.planning.plan_file import PLAN_FILE, RUNNING, read_document, write_plan
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import SEARCH_PART_BESIDE_SOFT, plan_project, require_plan
from jellybean.serving.client import served_document
from jellybean.serving.endpoint import owner_endpoint
from jellybean_solver import (
    Deadline,
    MigrationPrices,
    Plan,
    PlanDiff,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Solution,
    Verdict,
    as_counted,
    deadline_s,
    from_document,
    in_true_prices,
    is_by_ways,
    limited,
    load_prices,
    plan_diff,
    rate_text,
    replan,
    startable,
    to_document,
    unstartable,
)


@dataclass(frozen=True)
class ReplanResult:
    """The decision about a running plan: keep it or replace it.

    `before`, `document`: the running plan and its document as written. `solve_s`: seconds without simulations.
    """

    problem: Problem
    before: Plan
    document: dict[str, Any]
    decision: Replanned
    solve_s: float
    refusals: tuple[str, ...] = ()  # why no plan meets the p99 targets; empty if one does
    judged: Judged | None = None  # p99 latencies of the chosen plan at the current rates, if it has p99 targets
    unstartable: tuple[str, ...] = ()  # pools of which a change cannot start all workers, as sentences

    @property
    def diff(self) -> PlanDiff | None:
        """Difference between the running plan (with the current documents) and the best new plan.

        None if there is no new plan.
        """
        decision = self.decision
        if decision.best is None:
            return None
        return plan_diff(decision.running, decision.best, load_prices(decision.best, decision.settings.prices))

    @property
    def planned(self) -> Planned:
        """The chosen plan as a planning result: the running plan, the new plan, or no plan."""
        decision = self.decision
        plan = {Verdict.KEEP: self.before, Verdict.REPLACE: decision.best, Verdict.NONE: None}[decision.verdict]
        solution = Solution(plan, decision.infeasibility, decision.tried)
        return Planned(self.problem, solution, plan, tuple(self._reasons()), (), self.solve_s, judged=self.judged)

    @property
    def result(self) -> dict[str, Any] | None:
        """The document of the chosen plan; None if no plan meets the targets."""
        if self.decision.verdict is Verdict.KEEP:
            return self.document  # with its hash
        if self.decision.verdict is Verdict.NONE:
            return None
        return to_document(in_true_prices(self.problem, require_plan(self.planned)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Limitations of the figures, for the user."""
        return tuple(self._notes())

    def _reasons(self) -> Iterator[str]:
        decision = self.decision
        if decision.verdict is Verdict.NONE:
            yield from decision.infeasibility.reasons if decision.infeasibility is not None else self.refusals
            yield from (f"the running plan: {text}" for text in decision.broken)

    def _notes(self) -> Iterator[str]:
        yield from self.unstartable
        loads = self.decision.migration.loads if self.decision.migration is not None else ()
        for tier in dict.fromkeys(load.tier for load in loads if load.usd_per_gib is None):
            yield f"no links lead from {tier} to the top tier, so downloads there count as free; set migration.download"
        unknown = dict.fromkeys((load.operator, load.variant) for load in loads if load.size_bytes is None)
        if unknown and any(load.usd_per_gib for load in loads):
            names = ", ".join(f"{operator} {variant}" for operator, variant in unknown)
            reason = "no model file, no memory in the profile"
            yield f"the size of {names} is unknown ({reason}), so its download counts as free"
        if self.decision.migration is not None and self.decision.migration.out_of_time:
            yield "the time limit ended the matching of workers: the migration may cost less than stated"
        if self.decision.refused is not None and self.decision.best is not None:
            yield f"a cheaper change was rejected: {self.decision.refused}; the migration of this one was not minimised"
        if self.decision.verdict is Verdict.KEEP:
            rates = {source.name: source.rate_per_s for source in self.before.sources}
            other = [s for s in self.problem.sources if rates.get(s.name) != s.rate_per_s]
            if other:
                current = ", ".join(f"{s.name} {rate_text(s.rate_per_s)}" for s in other)
                declared = ", ".join(f"{s.name} {rate_text(rates[s.name])}" for s in other if s.name in rates)
                yield f"{PLAN_FILE} has the rates that it was made for ({declared}); the figures here are for {current}"


def named_plan(directory: Path, named: str) -> tuple[dict[str, Any], Plan]:
    """Read the document and the plan that `named` names: a plan file, a project folder, or `running`.

    `running` is the plan of `directory` that is being served.
    """
    if named == RUNNING:
        require_folder(directory)
        document = served_document(owner_endpoint(directory))
        return document, from_document(document)
    path = Path(named)
    if path.suffix == ".json":
        return read_document(path)
    require_folder(path)
    return read_document(path / PLAN_FILE, f"; run: jellybean plan {shell_text(path)}")


def replan_project(
    project: AnyProject,
    named: str,
    *,
    horizon_h: float,
    gap: float | None = None,
    time_limit_s: float | None = None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> ReplanResult:
    """Decide whether to keep the running plan (see `named_plan` for `named`) or to replace it. Writes no files.

    `horizon_h`: hours over which the costs of both plans and the migration are compared.
    """
    document, before = named_plan(project.directory, named)
    stated, migration = build_problem(project), project.infrastructure.migration
    problem = startable(stated, before)
    prices = MigrationPrices(migration.start_usd, migration.download_usd_per_gib)
    checks_s: list[float] = []

    def check(plan: Plan) -> str | None:
        progress(2 * len(checks_s), 3, "p99 latency")
        started = time.perf_counter()
        breach = latency_breach(plan)
        text = breach.text if breach is not None else breach_after_loss(problem, plan)
        checks_s.append(time.perf_counter() - started)
        progress(1, 3, "best change")
        return text

    refusals: tuple[str, ...] = ()

    def instead() -> Plan | None:
        nonlocal refusals
        left_s = None if time_limit_s is None else max(1.0, time_limit_s - (time.perf_counter() - started))
        planned = plan_project(project, running=before, gap=gap, time_limit_s=left_s, compare=False)
        refusals = planned.reasons
        return None if planned.plan is None else as_counted(problem, planned.plan)

    progress(0, 3, "running plan")
    started = time.perf_counter()
    clock = limited(time_limit_s, time.monotonic)
    search_s = clock.share(SEARCH_PART_BESIDE_SOFT).left() if soft_targets(problem) else time_limit_s
    decision = replan(
        problem,
        before,
        ReplanSettings(prices, horizon_h, migration.at_least),
        SearchSettings(
            gap, search_s, time.monotonic, check=check, instead=instead, deadline=_deadline(problem, progress)
        ),
    )
    if soft_targets(problem) and decision.best is not None:
        progress(1, 3, "soft p99 latency")
        if latency_targets(decision.best) and check(decision.best) is not None:
            decision = replace(decision, best=instead())
        decision = change_with_penalties(problem, before, decision, gap=gap, clock=clock, progress=progress)
    if decision.best is not None:
        decision = replace(decision, best=replace(decision.best, overrides=project.overrides))
    solve_s = time.perf_counter() - started - sum(checks_s)
    progress(2, 3, "p99 latency")
    chosen = {Verdict.KEEP: decision.running, Verdict.REPLACE: decision.best, Verdict.NONE: None}[decision.verdict]
    judged = judged_latency(chosen) if chosen is not None else None
    progress(3, 3, "done")
    missing = tuple(unstartable(stated, before))
    return ReplanResult(problem, before, document, decision, solve_s, refusals, judged, missing)


def _deadline(problem: Problem, progress: Callable[[float, float, str], None]) -> Deadline | None:
    """The p99 target of plans that mix variants or bear losses, judged by simulation; None for other problems."""
    target_s = deadline_s(problem)
    if target_s is None or not is_by_ways(problem):
        return None

    def tried(done: float, most: float) -> None:
        progress(1 + done / most, 3, "best change")

    return Deadline(target_s, judge=multiple_of_target, advance=tried)


def save_change(project: AnyProject, change: ReplanResult) -> None:
    """Write the kept or the new plan to DIR/plan.json, if one meets the targets."""
    if change.result is not None:
        write_plan(project, change.result, change.problem)
