"""Comparison of a changed problem's plan with the explained one, in what that was optimised for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jellybean_solver.diff.plan_differences import plan_differences
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Objective
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.outcome import COST_TOLERANCE
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.mix_search import MIX_GAP

WITH_PLAN = ("optimal", "gap", "time_limit")  # statuses of solutions with a plan


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of solving a changed problem.

    `status`: optimal; gap, time_limit (a plan, not proven cheapest); infeasible (proven); refused (the cheapest plan
    breaks a limit that the solver does not model, and no plan that keeps it was found); unknown (out of time). `plan`
    may break a limit; `reason` then says which.
    """

    status: str
    plan: Plan | None
    reason: str = ""
    infeasibility: Infeasibility | None = None

    @property
    def holds(self) -> bool:
        """True if there is a plan that keeps all limits."""
        return self.status in WITH_PLAN

    @property
    def proven(self) -> bool:
        """True if feasibility is known."""
        return self.status == "infeasible" or self.status in WITH_PLAN


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A changed problem's result compared with the explained plan.

    `delta_usd_per_h`: its cost, with penalties, less the explained plan's; `delta_share`: the same as share of the
    explained plan's cost. The difference in optimal costs lies in `delta_between_usd_per_h`; both ends equal
    `delta_usd_per_h` if both plans are proven optimal. Where the mean accuracy is maximised, `delta_points` and
    `delta_between_points` say the same of it, and the difference in cost is that of the two plans. Figures are None
    without a plan; if the plan breaks a limit, `reason` says which. `selections`: of a plan that mixes variants, with
    the share of the requests that get each.
    """

    kind: str
    subject: str
    words: str
    status: str
    reason: str = ""
    cost_usd_per_h: float | None = None
    delta_usd_per_h: float | None = None
    delta_between_usd_per_h: tuple[float | None, float | None] = (None, None)
    delta_share: float | None = None
    delta_points: float | None = None
    delta_between_points: tuple[float | None, float | None] = (None, None)
    gap: float | None = None
    accuracy: float | None = None
    selection: Mapping[str, str] = field(default_factory=dict)
    selections: tuple[tuple[float, Mapping[str, str]], ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if the changed problem has a plan that keeps all limits."""
        return self.status in WITH_PLAN

    @property
    def worse_by(self) -> float | None:
        """How much worse the plan is than the explained one, in USD per hour or points; negative if it is better."""
        return self.delta_usd_per_h if self.delta_points is None else -self.delta_points

    @property
    def worse_between(self) -> tuple[float | None, float | None]:
        """The ends of what `worse_by` is, were both plans optimal."""
        low, high = self.delta_between_points
        return self.delta_between_usd_per_h if low is None or high is None else (-high, -low)


def is_relaxation(kind: str, subject: str) -> bool:
    """True if the explained plan keeps all limits of a problem with this change."""
    return kind == "drop" or kind.startswith("more_") or (kind, subject[:1]) == ("accuracy", "-")


def compare(base: Plan, answer: Resolved, kind: str, subject: str, words: str) -> Counterfactual:
    """The result compared with the explained plan."""
    plan = answer.plan
    if plan is None:
        return Counterfactual(kind, subject, words, answer.status, answer.reason)
    cost, before = plan.cost.total_usd_per_h, base.certificate.objective
    delta, low, high = _worse_between(base, plan, is_relaxation(kind, subject))
    points: dict[str, Any] = {}
    if base.certificate.objective_of is Objective.MEAN_ACCURACY:
        points = {"delta_points": -delta, "delta_between_points": (-high, -low)}
        before = base.cost.total_usd_per_h
        delta = low = high = cost - before
    return Counterfactual(
        kind,
        subject,
        words,
        answer.status,
        answer.reason,
        cost,
        delta,
        (low, high),
        delta / before if before > 0 else None,
        gap=plan.certificate.gap,
        accuracy=plan.accuracy,
        selection=plan.selection,
        selections=tuple((part.share, part.selection) for part in selection_shares(plan)) if plan.mixes else (),
        differences=plan_differences(base, plan),
        **points,
    )


def _worse_between(base: Plan, plan: Plan, is_relaxed: bool) -> tuple[float, float, float]:
    """How much worse a plan is than the explained one, and the ends of what that is between the optima."""
    before, after = base.certificate, plan.certificate
    sign = -1.0 if before.objective_of is Objective.MEAN_ACCURACY else 1.0
    worse = _worse_by(plan, before)
    room, tolerance = sign * (before.objective - before.bound), _tolerance(plan, before)
    worse, low, high = (
        0.0 if abs(value) <= tolerance else value
        for value in (worse, sign * (after.bound - before.objective), worse + room)
    )
    if is_relaxed:
        return min(worse, 0.0), low, min(high, 0.0)  # no worse than the explained plan
    return worse, max(low, 0.0) if worse >= 0 else low, high  # a restriction: no better


def is_better(plan: Plan, other: Plan) -> bool:
    """True if a plan is better than another one of the same objective by more than two programs may differ."""
    return _worse_by(plan, other.certificate) < -_tolerance(plan, other.certificate)


def _worse_by(plan: Plan, proof: Certificate) -> float:
    """How much worse a plan is than one with a certificate, in what that was optimised for."""
    if proof.objective_of is Objective.MEAN_ACCURACY:
        return proof.objective - (plan.mean_accuracy or 0.0)
    counted = plan.cost.total_usd_per_h + plan.certificate.penalty_usd_per_h + plan.forgone_usd_per_h
    return counted - proof.objective


def _tolerance(plan: Plan, proof: Certificate) -> float:
    """What values of two programs may differ by: more where one of them ended within its gap."""
    share = max(COST_TOLERANCE, *(min(one.gap, MIX_GAP) for one in (plan.certificate, proof)))
    return share * max(1.0, proof.objective)
