"""What `plan --json` prints."""

from __future__ import annotations

import dataclasses
from typing import Any

from jellybean.cli.failures import failure
from jellybean.cli.planning.plan_latency import latency_json
from jellybean.errors import InfeasibleError
from jellybean.planning.project_plan import Planned
from jellybean_solver import WORKFLOW_SEPARATOR, Cost, Plan, PlannedWorkflow, planned_cuts, to_document


def plan_json(planned: Planned, kept: str = "") -> dict[str, Any]:
    """What `plan --json` prints, feasible or not; `kept`: of the plan that stays where there is no new one."""
    if planned.plan is None:
        why = planned.infeasibility
        return {
            "status": "infeasible",
            "cost_usd_per_h": None,
            "accuracy": None,
            "selection": {},
            "placements": [],
            "certificate": None,
            "reasons": list(planned.reasons),
            "breaches": list(why.breaches if why else planned.reasons[:1]),
            "nearest": {
                "accuracy": why.nearest_accuracy if why else None,
                "rate_scale": why.nearest_rate_scale if why else None,
                "latency_p99_s": planned.nearest_p99_s,
            },
            "kept_plan": kept,
            "solve_s": planned.solve_s,
            **failure(InfeasibleError(planned.reasons, kept)),
        }
    found = planned.plan
    return {
        "status": planned.status,
        "hash": to_document(found)["hash"],
        "cost_usd_per_h": _cost(found.cost),
        "accuracy": found.accuracy,
        **({"workflows": {w.name: _workflow(found, w) for w in found.workflows}} if found.workflows else {}),
        "selection": dict(found.selection),
        "latency_p99": latency_json(planned),
        "cuts": [dataclasses.asdict(cut) for cut in planned_cuts(found)],
        "sites": dict(found.sites),
        "placements": [dataclasses.asdict(place) for place in found.placements],
        "certificate": {
            "objective": found.certificate.objective,
            "bound": found.certificate.bound,
            "gap": found.certificate.gap,
            "termination": found.certificate.termination,
        },
        "solve_s": planned.solve_s,
    }


def _workflow(plan: Plan, workflow: PlannedWorkflow) -> dict[str, Any]:
    """One of several: its part of the cost, its accuracy, and its operators by their own names."""
    own = len(workflow.name) + len(WORKFLOW_SEPARATOR)
    return {
        "cost_usd_per_h": _cost(workflow.cost),
        "accuracy": workflow.accuracy,
        "slo": {"accuracy": workflow.slo.accuracy, "latency_p99_s": workflow.slo.latency_p99_s},
        "selection": {name[own:]: variant for name, variant in plan.selection.items() if workflow.owns(name)},
        "placements": [
            dataclasses.asdict(place) | {"operator": place.operator[own:]}
            for place in plan.placements
            if workflow.owns(place.operator)
        ],
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {"total": cost.total_usd_per_h, "compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h}
