"""JSON output of `plan --json`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jellybean.cli.failures import failure
from jellybean.cli.planning.plan_latency import latency_json
from jellybean.errors import InfeasibleError
from jellybean.planning.cascades import planned_cascades
from jellybean.planning.planned import Planned
from jellybean.report.plans.audit_view import audit_json
from jellybean.report.plans.selections import selections_json
from jellybean_solver import (
    WORKFLOW_SEPARATOR,
    Cost,
    Plan,
    planned_cuts,
    served_shares,
)


def plan_json(planned: Planned, kept: str = "") -> dict[str, Any]:
    """The planning result as JSON values. `kept`: note that the existing plan.json stays, if there is no new plan."""
    if planned.plan is None:
        infeasibility = planned.infeasibility
        return {
            "status": "infeasible",
            "cost_usd_per_h": None,
            "accuracy": None,
            "selection": {},
            "placements": [],
            "certificate": None,
            "reasons": list(planned.reasons),
            "breaches": list(infeasibility.breaches if infeasibility else planned.reasons[:1]),
            "nearest": {
                "accuracy": infeasibility.nearest_accuracy if infeasibility else None,
                "rate_scale": infeasibility.nearest_rate_scale if infeasibility else None,
                "latency_p99_s": planned.nearest_p99_s,
            },
            "kept_plan": kept,
            **({"reserved_usd_per_h": paid} if (paid := planned.problem.paid_usd_per_h) else {}),
            "solve_s": planned.solve_s,
            **failure(InfeasibleError(planned.reasons, kept)),
        }
    plan = planned.plan
    return {
        "status": planned.status,
        "hash": (planned.document or {})["hash"],
        "cost_usd_per_h": _cost(plan.cost),
        "accuracy": plan.accuracy,
        **({"uses": dict(plan.uses)} if plan.uses else {}),
        **({"workflows": _workflows(plan)} if plan.workflows else {}),
        **({"left_out": [dataclasses.asdict(one) for one in plan.left_out]} if plan.left_out else {}),
        **({"after_losses": after} if (after := _after_losses(plan)) else {}),
        "selection": dict(plan.selection),
        **({"selections": selections_json(plan)} if plan.mixes else {}),
        "latency_p99": latency_json(planned),
        "cuts": [dataclasses.asdict(cut) for cut in planned_cuts(plan)],
        **({"cascades": [dataclasses.asdict(one) for one in cascades]} if (cascades := planned_cascades(plan)) else {}),
        **audit_json(plan),
        "sites": dict(plan.sites),
        "placements": [dataclasses.asdict(place) for place in plan.placements],
        "certificate": {
            "objective": plan.certificate.objective,
            "of": plan.certificate.objective_of.value,
            "bound": plan.certificate.bound,
            "gap": plan.certificate.gap,
            "termination": plan.certificate.termination,
            **({"keeps": plan.certificate.keeps} if plan.certificate.keeps else {}),
            **({"forgone": plan.certificate.forgone_usd_per_h} if plan.certificate.forgone_usd_per_h else {}),
            **({"penalty": plan.certificate.penalty_usd_per_h} if plan.certificate.penalty_usd_per_h else {}),
        },
        **({"reserved_usd_per_h": paid} if (paid := planned.problem.paid_usd_per_h) else {}),
        "solve_s": planned.solve_s,
        **({"best": planned.best} if planned.best else {}),
        **({"stale_profiles": list(plan.stale_profiles)} if plan.stale_profiles else {}),
        **({"overrides": list(plan.overrides)} if plan.overrides else {}),
    }


def _after_losses(plan: Plan) -> list[dict[str, Any]]:
    """The losses after which workflows that do not survive them are served in part: the answered shares by name."""
    found = []
    for loss, shares in served_shares(plan).items():
        partial = {name: share for name, share in shares.items() if name and share < 1.0}
        found += [{"lost": str(loss), "answered": partial}] if partial else []
    return found


def _workflows(plan: Plan) -> dict[str, Any]:
    """Several workflows as JSON values by name: share of the cost, accuracy, selection and placements of each.

    Operator names are without the workflow's name.
    """
    found: dict[str, Any] = {
        workflow.name: {
            "cost_usd_per_h": _cost(workflow.cost),
            "accuracy": workflow.accuracy,
            "slo": {
                "accuracy": workflow.slo.accuracy,
                **({} if (mean := workflow.slo.mean_accuracy) is None else {"mean_accuracy": mean}),
                "latency_p99_s": workflow.slo.latency_p99_s,
            },
            **({"worth_usd_per_h": workflow.worth_usd_per_h} if workflow.worth_usd_per_h is not None else {}),
            **({"owner": workflow.owner} if workflow.owner else {}),
            **audit_json(plan, workflow.name),
            "selection": {},
            "placements": [],
        }
        for workflow in plan.workflows
    }
    for name, variant in plan.selection.items():
        owner, _, operator = name.partition(WORKFLOW_SEPARATOR)
        found[owner]["selection"][operator] = variant
    for place in plan.placements:
        owner, _, operator = place.operator.partition(WORKFLOW_SEPARATOR)
        found[owner]["placements"].append(dataclasses.asdict(place) | {"operator": operator})
    return found


def _cost(cost: Cost) -> dict[str, float]:
    return {"total": cost.total_usd_per_h, "compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h}
