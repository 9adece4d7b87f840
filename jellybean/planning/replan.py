"""Re-plan a project, starting from a running plan or a plan file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jellybean.documents import AnyProject, build_problem
from jellybean.planning.plan_file import PLAN_FILE, WrittenPlan
from jellybean.planning.planned import Planned
from jellybean.planning.predicted_latency import check_latency, judged_latency, predicted_p99
from jellybean.planning.project_plan import SEARCH_PART_BESIDE_SOFT, search_or_rule, settle
from jellybean.planning.simulated_deadline import no_progress, planned_anew
from jellybean.planning.soft_targets import latency_penalty, soft_targets
from jellybean_solver import (
    Deadline,
    MigrationPrices,
    Plan,
    PlanDiff,
    Problem,
    Progress,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Solution,
    SolveOptions,
    Verdict,
    as_planned,
    cheapest_migration,
    in_true_prices,
    is_by_ways,
    is_worthwhile,
    limited_work,
    load_prices,
    plan_diff,
    rate_text,
    replan,
    rescore,
    startable,
    unstartable,
    with_change,
)


@dataclass(frozen=True, kw_only=True)
class ReplanResult(Planned):
    """The decision about a running plan: keep it or replace it. The plan is the chosen one, at the current rates."""

    running: WrittenPlan
    decision: Replanned

    @property
    def is_new(self) -> bool:
        return self.decision.verdict is Verdict.REPLACE

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """That of the running plan as it was written, if it is kept."""
        return self.running.document if self.decision.verdict is Verdict.KEEP else super().document

    @cached_property
    def diff(self) -> PlanDiff | None:
        """Difference between the running plan (with the current documents) and the best new plan.

        None if there is no new plan.
        """
        decision = self.decision
        if decision.best is None:
            return None
        return plan_diff(decision.running, decision.best, load_prices(decision.best, decision.settings.prices))


def _notes(problem: Problem, before: Plan, decision: Replanned) -> Iterator[str]:
    """Limitations of the figures of a decision, for the user."""
    loads = decision.migration.loads if decision.migration is not None else ()
    for tier in dict.fromkeys(load.tier for load in loads if load.usd_per_gib is None):
        yield f"no links lead from {tier} to the top tier, so downloads there count as free; set migration.download"
    unknown = dict.fromkeys((load.operator, load.variant) for load in loads if load.size_bytes is None)
    if unknown and any(load.usd_per_gib for load in loads):
        names = ", ".join(f"{operator} {variant}" for operator, variant in unknown)
        reason = "no model file, no memory in the profile"
        yield f"the size of {names} is unknown ({reason}), so its download counts as free"
    if decision.migration is not None and decision.migration.out_of_time:
        yield "the time limit ended the matching of workers: the migration may cost less than stated"
    if decision.refused is not None and decision.best is not None:
        yield f"a cheaper change was rejected: {decision.refused}; the migration of this one was not minimised"
    if decision.verdict is Verdict.KEEP:
        rates = {source.name: source.rate_per_s for source in before.sources}
        other = [source for source in problem.sources if rates.get(source.name) != source.rate_per_s]
        if other:
            current = ", ".join(f"{s.name} {rate_text(s.rate_per_s)}" for s in other)
            declared = ", ".join(f"{s.name} {rate_text(rates[s.name])}" for s in other if s.name in rates)
            yield f"{PLAN_FILE} has the rates that it was made for ({declared}); the figures here are for {current}"


def replan_project(
    project: AnyProject,
    running: WrittenPlan,
    *,
    horizon_h: float,
    gap: float | None = None,
    time_limit_s: float | None = None,
    progress: Progress = no_progress,
) -> ReplanResult:
    """Decide whether to keep the running plan or to replace it. Writes no files.

    `horizon_h`: hours over which the costs of both plans and the migration are compared.
    """
    before, whole, costs = running.plan, build_problem(project), project.infrastructure.migration
    problem = startable(whole, before)
    prices = MigrationPrices(costs.start_usd, costs.download_usd_per_gib)
    settings = ReplanSettings(prices, horizon_h, costs.at_least)
    started = time.perf_counter()
    progress(0, 3, "running plan")
    with limited_work(time_limit_s, time.monotonic) as clock:
        stated, _, broken = rescore(as_planned(problem, before), before)
        missed = None if broken else check_latency(stated, problem)

        def instead() -> Plan | None:
            return search_or_rule(problem, SolveOptions(gap, clock.left(), time.monotonic), clock).plan

        search = SearchSettings(gap, None, time.monotonic, missed=missed, instead=instead)
        is_timed = bool(soft_targets(problem)) or problem.deadline_s is not None
        search_s = clock.share(SEARCH_PART_BESIDE_SOFT).left() if is_timed else clock.left()
        progress(1, 3, "best change")
        decision = replan(problem, before, settings, replace(search, time_limit_s=search_s))
        settled = Planned(problem, _solution(decision))
        if decision.best is not None and (decision.broken or is_worthwhile(decision) or soft_targets(problem)):
            settled = _settled(problem, before, decision, search, progress)
            decision = _decided(decision, before, settled)
    if decision.best is not None:
        decision = replace(decision, best=replace(decision.best, overrides=project.overrides))
    solve_s = time.perf_counter() - started
    progress(2, 3, "p99 latency")
    is_kept, reasons = decision.verdict is Verdict.KEEP, tuple[str, ...]()
    chosen = decision.running if is_kept else decision.best
    if chosen is None:
        why = decision.infeasibility.reasons if decision.infeasibility is not None else settled.reasons
        reasons = (*why, *(f"the running plan: {text}" for text in decision.broken))
    judged = None if chosen is None else judged_latency(chosen)
    progress(3, 3, "done")
    plan = before if is_kept else decision.best and in_true_prices(problem, decision.best)
    return ReplanResult(
        problem,
        Solution(plan, decision.infeasibility, decision.tried),
        reasons,
        solve_s=solve_s,
        judged=judged,
        options=project.overrides,
        notes=(*unstartable(whole, before), *_notes(problem, before, decision)),
        running=running,
        decision=decision,
    )


def _solution(decision: Replanned) -> Solution:
    """The best change as a solution; its certificate counts the migration."""
    return Solution(decision.best, decision.infeasibility, decision.tried)


def _settled(
    problem: Problem, before: Plan, decision: Replanned, search: SearchSettings, progress: Progress
) -> Planned:
    """The best change that meets the p99 targets, with what soft ones count.

    Where plans are found by ways, migration is minimised together with the cost for each target; where they are not,
    it is added to what plans cost.
    """
    settings, is_ways = decision.settings, is_by_ways(problem)

    def beside(changed: Problem, deadline: Deadline | None, limit_s: float | None) -> Solution:
        return _solution(replan(changed, before, settings, replace(search, time_limit_s=limit_s, deadline=deadline)))

    def value(plan: Plan) -> float:
        return plan.counted_usd_per_h + cheapest_migration(before, plan, settings.prices).total_usd / settings.horizon_h

    return settle(
        problem,
        _solution(decision),
        search.gap,
        solve=beside if is_ways else planned_anew(search.gap),
        value=value,
        nearest=not is_ways,
        progress=lambda done, total, label: progress(1 + done / total, 3, label),
    )


def _decided(decision: Replanned, before: Plan, settled: Planned) -> Replanned:
    """The decision with the change that was settled, or without any if none meets the targets."""
    plan, judged = settled.solution.plan, settled.judged
    late = judged if settled.reasons else settled.cheapest
    refused = late.text if late is not None and not late.kept else None
    if plan is None or settled.reasons:
        verdict = Verdict.NONE if decision.broken else Verdict.KEEP
        return replace(decision, verdict=verdict, best=None, migration=None, refused=refused or settled.reasons[0])
    bound_usd, late_usd_per_h = decision.bound_usd, (0.0, 0.0)
    if soft_targets(plan) and not decision.maximises_accuracy:
        running_s = {name: p99.p99_s for name, p99 in predicted_p99(decision.running).items()}
        own = 0.0 if judged is None else sum(judged.penalties_usd_per_h.values())
        late_usd_per_h = latency_penalty(decision.running, running_s), own
        bound_usd = plan.certificate.bound * decision.settings.horizon_h
    return with_change(
        decision, plan, cheapest_migration(before, plan, decision.settings.prices), bound_usd, late_usd_per_h, refused
    )
