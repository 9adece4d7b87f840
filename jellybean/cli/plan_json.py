"""What `plan --json` prints."""

from __future__ import annotations

from typing import Any

from jellybean.cli.failures import failure
from jellybean.errors import InfeasibleError
from jellybean.planning import Planned
from jellybean_solver.plan_document import to_document


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
        "cost_usd_per_h": {
            "total": found.cost.total_usd_per_h,
            "compute": found.cost.compute_usd_per_h,
            "network": found.cost.network_usd_per_h,
        },
        "accuracy": found.accuracy,
        "selection": dict(found.selection),
        "sites": dict(found.sites),
        "placements": [
            {
                "operator": place.operator,
                "variant": place.variant,
                "pool": place.pool,
                "tier": place.tier,
                "count": place.count,
                "sites": place.sites,
                "batch": place.batch,
                "rate_per_s": place.rate_per_s,
                "load": place.load,
            }
            for place in found.placements
        ],
        "certificate": {
            "objective": found.certificate.objective,
            "bound": found.certificate.bound,
            "gap": found.certificate.gap,
            "termination": found.certificate.termination,
        },
        "solve_s": planned.solve_s,
    }
