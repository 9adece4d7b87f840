"""The conditions of a resource's status: what was planned, deployed and serves, and what that means for its health.

Pure. `Ready`, `Reconciling` and `Stalled` follow kstatus (sigs.k8s.io/cli-utils, pkg/kstatus), by which kubectl, Flux
and Argo CD tell a resource that is in progress from one that has failed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_k8s import (
    CONDITION_DEGRADED,
    CONDITION_DEPLOYED,
    CONDITION_PLANNED,
    CONDITION_PROGRESSING,
    CONDITION_READY,
    CONDITION_RECONCILING,
    CONDITION_STALLED,
    CONDITION_TYPES,
)
from jellybean_solver import Plan, served_streams, to_document

Condition = dict[str, Any]
BUSY = "Busy"  # reason: another deployment runs; this one follows by itself
_MAX_MESSAGE = 32_768
_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves a resource now. `plan`: short hash, empty if nothing does; `lacks`: a line for each thing amiss."""

    plan: str = ""
    address: str = ""
    lacks: tuple[str, ...] = ()


def condition(kind: str, status: bool | None, reason: str, message: str) -> Condition:
    """A Kubernetes condition without its times. `status` None: Unknown. `reason`: one CamelCase word."""
    text = "Unknown" if status is None else str(status)
    return {"type": kind, "status": text, "reason": reason, "message": message[:_MAX_MESSAGE]}


def health(known: Sequence[Condition], serving: Serving) -> list[Condition]:
    """Ready, Progressing, Stalled and Degraded of a resource at rest, from `known` (Planned, Deployed) and what serves.

    It is ready if what serves is complete and is what the resource asks for.
    """
    refused = next(
        (c for c in known if c["type"] in (CONDITION_PLANNED, CONDITION_DEPLOYED) and c["status"] == "False"), None
    )
    lacks = "\n".join(serving.lacks)
    text = f"plan {serving.plan} serves at {serving.address}" if serving.plan else "no plan serves yet"
    if refused is not None:
        is_busy = refused["reason"] == BUSY
        message = f"{text}; {refused['type']}: {refused['message']}" + (f"\n{lacks}" if lacks else "")
        reason = refused["reason"] if serving.plan else "NothingServes"
        return [
            condition(CONDITION_READY, False, reason, message),
            *_progress(is_busy, refused["reason"], message),
            condition(CONDITION_STALLED, not is_busy, refused["reason"], message),
            condition(CONDITION_DEGRADED, bool(serving.plan), reason, message),
        ]
    if not serving.plan:
        return [
            condition(CONDITION_READY, False, "NothingServes", text),
            *_progress(True, "Waiting", text),
            condition(CONDITION_STALLED, False, "Waiting", ""),
            condition(CONDITION_DEGRADED, False, "NothingServes", ""),
        ]
    if lacks:
        return [
            condition(CONDITION_READY, False, "NotReady", lacks),
            *_progress(True, "NotReady", lacks),
            condition(CONDITION_STALLED, False, "NotReady", ""),
            condition(CONDITION_DEGRADED, True, "NotReady", lacks),
        ]
    return [
        condition(CONDITION_READY, True, "Serving", text),
        *_progress(False, "Serving", ""),
        condition(CONDITION_STALLED, False, "Serving", ""),
        condition(CONDITION_DEGRADED, False, "Serving", ""),
    ]


def in_progress(reason: str, message: str) -> list[Condition]:
    """The conditions of a resource that is being deployed: whether it will be ready is not known."""
    return [
        condition(CONDITION_READY, None, reason, message),
        *_progress(True, reason, message),
        condition(CONDITION_STALLED, False, reason, ""),
    ]


def _progress(status: bool, reason: str, message: str) -> list[Condition]:
    """Progressing, for people, and the same as Reconciling, for kstatus."""
    return [condition(kind, status, reason, message) for kind in (CONDITION_PROGRESSING, CONDITION_RECONCILING)]


def with_conditions(
    before: Mapping[str, Any], found: Sequence[Mapping[str, Any]], generation: int, now: datetime.datetime
) -> list[Condition]:
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
