"""Plans a project with a soft p99 latency: the plan of least cost and penalty for what its p99 exceeds the target.

The plans it compares are those for hard targets, so that they are found, judged and proven as all others are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from jellybean.display import formats
from jellybean.documents import Project, build_forms, build_problem
from jellybean.errors import InputError
from jellybean.planning.deadline.predicted_latency import Judged, predicted_p99
from jellybean.planning.deadline.soft_search import (
    MOST_TARGETS,
    TOLERANCE,
    Candidate,
    NoPlan,
    SoftOutcome,
    SoftSearch,
    SoftTarget,
)
from jellybean.planning.planned import Planned
from jellybean.quantities import DURATION, format_quantity
from jellybean_solver import (
    Certificate,
    OutOfTimeError,
    Plan,
    Slo,
    Termination,
    least_latency_s,
    limited,
    termination_of,
)

NEVER_LATE_S = 86_400e3  # a hard target that every plan meets: with one, plans are simulated and may be busier
CHEAPEST_SHARE = 0.4  # of the time limit for the cheapest plan, without which nothing is known
TARGET_SHARE = 0.4  # of the time left for each target; later ones refine what earlier ones found
LEAST_S = 1.0  # no search is begun with less time: a plan in time takes several simulations

Progress = Callable[[float, float, str], None]
# Plans a project with a hard target within so many seconds; OutOfTimeError if time ends before a plan is found.
PlanOne = Callable[[Project, float | None, Progress], Planned]


def stated_soft_target(project: Project) -> SoftTarget | None:
    """The soft p99 latency of a project with its penalty; None if there is none."""
    slo = project.workflow.slo
    if slo.soft_latency_p99_s is None or slo.latency_penalty_usd_per_h_per_s is None:
        return None
    return SoftTarget(slo.soft_latency_p99_s, slo.latency_penalty_usd_per_h_per_s)


def with_hard_target(project: Project, p99_s: float) -> Project:
    """The project with a hard p99 target instead of its soft one, as an option of it.

    The documents are not read again: those of a Workflow resource have no files of models.
    """
    hard = {"latency_p99_s": p99_s, "soft_latency_p99_s": None, "latency_penalty_usd_per_h_per_s": None}
    slo = project.workflow.slo.model_copy(update=hard)
    return replace(
        project,
        workflow=project.workflow.model_copy(update={"slo": slo}),
        overrides=(*project.overrides, f"slo.latency_p99={format_quantity(DURATION, p99_s)}"),
    )


def with_planned_p99(project: Project, planned: Planned) -> Project:
    """The project with the hard p99 target that its plan was found for, instead of the soft one.

    Its cheapest plan is the one of least cost and penalty, so that commands that know hard targets alone explain it.
    """
    return project if planned.asked_p99_s is None else with_hard_target(project, planned.asked_p99_s)


def plan_with_soft_latency(
    project: Project, plan_one: PlanOne, gap: float | None, limit_s: float | None, report: Progress
) -> Planned:
    """The plan of least cost and penalty; without any plan the reasons for that of the project without the target."""
    target = stated_soft_target(project)
    if target is None:
        raise InputError("slo.latency_p99 is no soft target: write {target: 300 ms, penalty: 0.02 USD/h per 10 ms}")
    started = time.perf_counter()
    tries = _Tries(project, plan_one, limit_s, report)
    cheapest = tries.plan(NEVER_LATE_S, CHEAPEST_SHARE)
    if cheapest.plan is None:
        slo = _softened(cheapest.problem.slo, target)
        return replace(cheapest, problem=replace(cheapest.problem, slo=slo), asked_p99_s=None)
    first = _candidate(cheapest, cheapest.plan)
    tolerance = TOLERANCE if gap is None else gap
    outcome = SoftSearch(target, first, tries.in_time, _least_s(project), tolerance).run()
    report(1, 1, "done")
    outcome = replace(outcome, out_of_time=outcome.out_of_time or tries.late)
    answer = _answer(project, target, outcome, first)
    return replace(answer, solve_s=time.perf_counter() - started)


class _Tries:
    """Plans for hard targets, each with a part of the time and of the progress. `late`: time may have cut one short."""

    def __init__(self, project: Project, plan_one: PlanOne, limit_s: float | None, report: Progress) -> None:
        self.project, self.plan_one, self.report = project, plan_one, report
        self.clock, self.done, self.late = limited(limit_s, time.monotonic), 0, False

    def plan(self, target_s: float, share: float) -> Planned:
        """The cheapest plan for a hard target, within a share of the time left."""
        within = "cheapest plan" if target_s == NEVER_LATE_S else f"p99 within {formats.duration(target_s)}"

        def progress(done: float, total: float, label: str) -> None:
            self.report(self.done + done / max(total, 1e-9), MOST_TARGETS + 1, f"{within}: {label}")

        planned = self.plan_one(with_hard_target(self.project, target_s), self.clock.share(share).left(), progress)
        planned = replace(planned, asked_p99_s=target_s)
        self.done += 1
        cut_short = planned.status == Termination.TIME_LIMIT or planned.plan is None
        self.late = self.late or (cut_short and self.clock.left() is not None)
        return planned

    def in_time(self, target_s: float) -> Candidate[Planned] | NoPlan:
        """Implements `PlanInTime`."""
        left_s = self.clock.left()
        if left_s is not None and left_s < LEAST_S:
            return NoPlan(out_of_time=True)
        try:
            planned = self.plan(target_s, TARGET_SHARE)
        except OutOfTimeError:
            return NoPlan(out_of_time=True)
        return NoPlan(planned.nearest_p99_s) if planned.plan is None else _candidate(planned, planned.plan)


def _candidate(planned: Planned, plan: Plan) -> Candidate[Planned]:
    """A plan for a hard target with what it costs, a penalty for its accuracy included."""
    proof = plan.certificate
    return Candidate(proof.objective, proof.bound, predicted_p99(plan)[""].p99_s, planned)


def _least_s(project: Project) -> float:
    """What is proven to be below every plan's p99 latency; 0 where parts of models or cascades may be faster."""
    if build_forms(project):
        return 0.0
    problem = build_problem(project)
    return 0.0 if problem.may_mix else least_latency_s(problem)


def _softened(slo: Slo, target: SoftTarget) -> Slo:
    """The targets with the soft p99 latency instead of a hard one."""
    return replace(
        slo,
        latency_p99_s=None,
        soft_latency_p99_s=target.p99_s,
        latency_penalty_usd_per_h_per_s=target.usd_per_h_per_s,
    )


def _answer(
    project: Project,
    target: SoftTarget,
    outcome: SoftOutcome[Planned],
    cheapest: Candidate[Planned],
) -> Planned:
    """The best plan with the soft target, and the certificate of cost and penalty together."""
    planned = outcome.best.planned
    soft = _soft_plan(project, target, outcome.best)
    if soft is None:
        return planned
    value, bound = outcome.best.cost_usd_per_h + target.penalty(outcome.best.p99_s), outcome.bound_usd_per_h
    certificate = Certificate.of(value, bound, termination_of(value, bound, out_of_time=outcome.out_of_time))
    certificate = replace(
        certificate, penalty_usd_per_h=soft.accuracy_penalty_usd_per_h + target.penalty(outcome.best.p99_s)
    )
    plan = replace(soft, certificate=certificate)
    before = _soft_plan(project, target, cheapest)
    return replace(
        planned,
        problem=replace(planned.problem, slo=_softened(planned.problem.slo, target)),
        solution=replace(planned.solution, status=certificate.termination, plan=plan, certificate=certificate),
        plan=plan,
        judged=_judged(plan, target),
        cheapest=None if before is None or outcome.best is cheapest else (before, _judged(before, target)),
        best=_text(target, outcome),
        asked_p99_s=_met_p99_s(target, outcome.best) if outcome.best is cheapest else planned.asked_p99_s,
    )


def _soft_plan(project: Project, target: SoftTarget, candidate: Candidate[Planned]) -> Plan | None:
    plan = candidate.planned.plan
    return None if plan is None else replace(plan, slo=_softened(plan.slo, target), overrides=project.overrides)


def _met_p99_s(target: SoftTarget, cheapest: Candidate[Planned]) -> float:
    """A hard target that the cheapest plan meets."""
    return max(target.p99_s, cheapest.p99_s)


def _judged(plan: Plan, target: SoftTarget) -> Judged:
    return Judged(plan, predicted_p99(plan), {"": target.p99_s})


def _text(target: SoftTarget, outcome: SoftOutcome[Planned]) -> str:
    """What was compared; empty if the cheapest plan meets the target or is proven to be the best at once."""
    if not outcome.tried_s:
        return ""
    between = " to ".join(dict.fromkeys(map(formats.duration, (min(outcome.tried_s), max(outcome.tried_s)))))
    refused = "" if outcome.refused_s is None else f"; for {formats.duration(outcome.refused_s)} no plan was found"
    tried = formats.count(len(outcome.tried_s), "p99 target")
    return f"least cost and penalty of the cheapest plans without and with {tried}, {between}{refused}"
