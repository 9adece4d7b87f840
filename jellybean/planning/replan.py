"""Re-planning a project from a plan that is served or was written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.documents import AnyProject, build_cuts, build_problem, require_folder
from jellybean.planning.project_plan import PLAN_FILE, Planned, plan_project, read_document, save_plan, write_plan
from jellybean.planning.simulation import latency_breach
from jellybean.serving.run_state import running_state
from jellybean_solver import (
    DEFAULT_GAP,
    Cuts,
    MigrationPrices,
    Plan,
    PlanDiff,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Solution,
    Verdict,
    load_prices,
    plan_diff,
    replan_cut,
)

RUNNING = "running"  # in place of a file: what is being served from the project


@dataclass(frozen=True)
class Change:
    """A decision about a project's running plan. `document`: that plan as it was written; `solve_s`: without p99."""

    problem: Problem
    before: Plan
    document: dict[str, Any]
    decision: Replanned
    solve_s: float
    refusals: tuple[str, ...] = ()  # why no plan keeps the p99 latency
    cuts: Cuts = field(default_factory=dict)

    @property
    def diff(self) -> PlanDiff | None:
        """From the running plan, by today's documents, to the best change; None without one."""
        found = self.decision
        if found.best is None:
            return None
        return plan_diff(found.running, found.best, load_prices(found.best, found.settings.prices))

    @property
    def planned(self) -> Planned:
        """The plan to go on with, as if it had been planned: the running one, the new one, or none."""
        found = self.decision
        plan = {Verdict.KEEP: self.before, Verdict.REPLACE: found.best, Verdict.NONE: None}[found.verdict]
        certificate = plan.certificate if plan is not None else None
        status = certificate.termination if certificate is not None else "infeasible"
        solution = Solution(status, plan, found.infeasibility, found.tried, certificate)
        return Planned(self.problem, solution, plan, tuple(self._reasons()), (), self.solve_s, cuts=self.cuts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out."""
        return tuple(self._notes())

    def _reasons(self) -> Iterator[str]:
        found = self.decision
        if found.verdict is Verdict.NONE:
            yield from found.infeasibility.reasons if found.infeasibility is not None else self.refusals
            yield from (f"the running plan: {text}" for text in found.broken)

    def _notes(self) -> Iterator[str]:
        loads = self.decision.migration.loads if self.decision.migration is not None else ()
        for tier in dict.fromkeys(load.tier for load in loads if load.usd_per_gib is None):
            yield f"no links lead from {tier} to the top tier: bringing models there counts as free; migration.download"
        unknown = dict.fromkeys((load.operator, load.variant) for load in loads if load.size_bytes is None)
        if unknown and any(load.usd_per_gib for load in loads):
            names = ", ".join(f"{operator} {variant}" for operator, variant in unknown)
            yield f"no model file or memory in the profile says the size of {names}: downloads of it count as free"
        if self.decision.refused is not None and self.decision.best is not None:
            yield f"a cheaper change was not used: {self.decision.refused}; this one's migration was not minimised"
        if self.decision.verdict is Verdict.KEEP:
            rates = {source.name: source.rate_per_s for source in self.before.sources}
            other = [s for s in self.problem.sources if rates.get(s.name) != s.rate_per_s]
            if other:
                asked = ", ".join(f"{s.name} {s.rate_per_s:g}/s" for s in other)
                stated = ", ".join(f"{s.name} {rates[s.name]:g}/s" for s in other if s.name in rates)
                yield f"{PLAN_FILE} states the rates that it was made for ({stated}); the figures here are for {asked}"


def running_plan(directory: Path, named: str) -> tuple[dict[str, Any], Plan]:
    """The plan that is served from a project (`running`), of a plan file, or of another project, as it was written."""
    if named == RUNNING:
        return read_document(running_state(directory.resolve()).plan_path)
    path = Path(named)
    if path.suffix == ".json":
        return read_document(path)
    require_folder(path)
    return read_document(path / PLAN_FILE, f"; run: jellybean plan {path}")


def replan_project(
    project: AnyProject,
    named: str,
    *,
    horizon_h: float,
    gap: float = DEFAULT_GAP,
    time_limit_s: float | None = None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> Change:
    """Decide whether to keep the plan that `named` is, or what to go on to. Writes nothing."""
    document, before = running_plan(project.directory, named)
    problem, cuts, stated = build_problem(project), build_cuts(project), project.infrastructure.migration
    prices = MigrationPrices(stated.start_usd, stated.download_usd_per_gib)
    checks_s: list[float] = []

    def check(plan: Plan) -> str | None:
        progress(2 * len(checks_s), 3, "p99 latency")
        started = time.perf_counter()
        breach = latency_breach(plan)
        checks_s.append(time.perf_counter() - started)
        progress(1, 3, "the best change")
        return breach.text if breach is not None else None

    refusals: tuple[str, ...] = ()

    def instead() -> Plan | None:
        nonlocal refusals
        left_s = None if time_limit_s is None else max(1.0, time_limit_s - (time.perf_counter() - started))
        planned = plan_project(project, gap=gap, time_limit_s=left_s, compare=False)
        refusals = planned.reasons
        return planned.plan

    progress(0, 3, "the running plan")
    started = time.perf_counter()
    decision = replan_cut(
        problem,
        cuts,
        before,
        ReplanSettings(prices, horizon_h, stated.at_least),
        check=check,
        instead=instead,
        search=SearchSettings(gap, time_limit_s, time.monotonic),
    )
    progress(3, 3, "done")
    return Change(problem, before, document, decision, time.perf_counter() - started - sum(checks_s), refusals, cuts)


def save_change(project: AnyProject, change: Change) -> dict[str, Any] | None:
    """Write DIR/plan.json: the running plan as it was written, or the new one; returns it, None when there is none."""
    if change.decision.verdict is Verdict.KEEP:
        return write_plan(project.directory, change.document, change.problem, change.cuts)
    if change.decision.verdict is Verdict.REPLACE:
        return save_plan(project, change.planned)
    return None
