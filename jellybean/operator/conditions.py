"""The status of a resource: Kubernetes conditions and figures of its plan. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from jellybean_k8s import CONDITION_TYPES
from jellybean_solver import Plan, served_streams, to_document

_MAX_MESSAGE = 32_768
_HASH_DIGITS = 12


def condition(kind: str, status: bool | None, reason: str, message: str) -> dict[str, Any]:
    """A Kubernetes condition without its times. `status` None: Unknown. `reason`: one CamelCase word."""
    text = "Unknown" if status is None else str(status)
    return {"type": kind, "status": text, "reason": reason, "message": message[:_MAX_MESSAGE]}


def with_conditions(
    before: Mapping[str, Any], found: Sequence[Mapping[str, Any]], generation: int, now: datetime.datetime
) -> list[dict[str, Any]]:
    """The conditions `before`, updated by `found`, in a fixed order; a transition time changes only with its status."""
    known = {item["type"]: dict(item) for item in before.get("conditions") or ()}
    when = now.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for item in found:
        old = known.get(item["type"])
        since = old["lastTransitionTime"] if old is not None and old["status"] == item["status"] else when
        known[item["type"]] = {**item, "observedGeneration": generation, "lastTransitionTime": since}
    order = [*CONDITION_TYPES, *sorted(set(known) - set(CONDITION_TYPES))]
    return [known[kind] for kind in order if kind in known]


def differs(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """True if a status that is merged would change something; None removes a key."""
    return any(_known(before.get(key)) != _known(value) for key, value in wanted.items())


def _known(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value


def plan_figures(plan: Plan) -> dict[str, Any]:
    """Short hash, rate, p99 target, cost, accuracy and optimality gap of a plan, for the resource's status."""
    proof = plan.certificate
    return {
        "plan": str(to_document(plan)["hash"])[:_HASH_DIGITS],
        "requestsPerSecond": round(sum(stream.rate_per_s for stream in served_streams(plan)), 4),
        "latencyP99TargetSeconds": plan.slo.latency_p99_s or plan.slo.soft_latency_p99_s,
        "costUsdPerHour": round(plan.cost.total_usd_per_h, 4),
        "accuracy": None if plan.accuracy is None else round(plan.accuracy, 2),
        "gap": f"{proof.gap:.2%}" if proof.bound > 0 or proof.is_optimal else "unknown",
    }
