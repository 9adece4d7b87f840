"""What a reconciliation found, written to the resource's status, and posted as events where it changed."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean.errors import DocumentError, InfeasibleError, JellyBeanError
from jellybean.operator.conditions import (
    BUSY,
    Condition,
    Serving,
    condition,
    differs,
    health,
    in_progress,
    plan_figures,
    with_conditions,
)
from jellybean_k8s import (
    CONDITION_DEGRADED,
    CONDITION_DEPLOYED,
    CONDITION_PLANNED,
    CONDITION_READY,
    CRD_API_VERSION,
    CRD_KIND,
    Cluster,
    DeployedPlan,
    LockedError,
    NotReadyError,
    PreflightError,
)
from jellybean_solver import Plan, plain_text, to_document

COMPONENT = "jellybean-operator"
_MAX_EVENT = 1000
_MAX_FLEET = 1000
_TOLD = (CONDITION_PLANNED, CONDITION_DEPLOYED, CONDITION_READY, CONDITION_DEGRADED)  # as events too
_PROGRESS_S = 5.0  # between two writes of how far a deployment is


@dataclass(frozen=True)
class Decision:
    """A plan to serve. `rescored`: this plan evaluated by current documents; `reason`: Planned, Replanned or Kept."""

    plan: Plan
    rescored: Plan
    reason: str
    note: str = ""


class Report:
    """Findings of one reconciliation. `app`: name of the deployment; `clock`: monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Mapping[str, Any],
        app: str,
        *,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        self._cluster, self._resource, self._now, self._clock, self._log = cluster, resource, now, clock, log
        self._before: Mapping[str, Any] = resource.get("status") or {}
        self._found: list[Condition] = []
        self._figures: dict[str, Any] = {"name": app}
        self._told_s: float | None = None

    @property
    def failed(self) -> str | None:
        """Hash of the state whose plan did not become ready, as of the last reconciliation."""
        return self._before.get("failed")

    @property
    def conditions(self) -> Sequence[Condition]:
        """All conditions of the resource, as last written."""
        return [dict(item) for item in self._before.get("conditions") or ()]

    def before(self, kind: str) -> Condition | None:
        """A condition as it was before."""
        return next((dict(item) for item in self._before.get("conditions") or () if item["type"] == kind), None)

    def find(self, item: Condition) -> None:
        """Add a condition."""
        self._found.append(item)

    def planned(self, decision: Decision, fleet: str) -> None:
        """A plan was found."""
        figures = {**plan_figures(decision.rescored), "plan": str(to_document(decision.plan)["hash"])[:12]}
        self._figures |= {**figures, "fleet": fleet[:_MAX_FLEET]}
        accuracy = "" if figures["accuracy"] is None else f", accuracy {figures['accuracy']:g}"
        text = f"plan {figures['plan']}: {plain_text(figures['costUsdPerHour'])} USD/h{accuracy}, gap {figures['gap']}"
        self.find(condition(CONDITION_PLANNED, True, decision.reason, text + decision.note))

    def deploying(self, deployed: DeployedPlan, label: str) -> None:
        """Write at once that a plan is being deployed, and how far it is, at most every few seconds."""
        now_s = self._clock()
        if self._told_s is not None and now_s - self._told_s < _PROGRESS_S:
            return
        self._told_s = now_s
        self._write_conditions([*self._found, *in_progress("Deploying", f"plan {deployed.id}: {label}")])

    def deployed(self, deployed: DeployedPlan, number: int | None, applied: int, pruned: int) -> None:
        """The plan serves."""
        self._figures |= {"served": deployed.id, "failed": None}
        if number is not None:
            self._figures["revision"] = number
        before = self.before(CONDITION_DEPLOYED)
        if number is not None or before is None or before["status"] != "True":
            text = f"plan {deployed.id} serves: {applied} objects applied, {pruned} pruned"
            self.find(condition(CONDITION_DEPLOYED, True, "Deployed", text))

    def healed(self, words: Sequence[str]) -> None:
        """What others had deleted or changed was applied again; an event, as the status may show nothing of it."""
        text = "applied again: " + "; ".join(words)
        self._post_event(condition(CONDITION_DEGRADED, True, "Healed", text))

    def not_ready(self, state: str) -> None:
        """The plan for this state did not become ready, and is not tried again."""
        self._figures["failed"] = state

    def measured(self, figures: dict[str, Any] | None) -> None:
        """What the gateway measures; None while it does not say."""
        self._figures["measured"] = figures

    def handled(self) -> None:
        """The resource's generation has been dealt with, well or not."""
        self._figures["observedGeneration"] = self._resource["metadata"].get("generation", 1)

    def fail(self, error: JellyBeanError) -> None:
        """Planning failed, or deploying where a plan was found before."""
        self.handled()
        is_planned = any(item["type"] == CONDITION_PLANNED for item in self._found)
        kind = CONDITION_DEPLOYED if is_planned else CONDITION_PLANNED
        self.find(condition(kind, False, _reason(error, kind), str(error)))

    def write(self, serving: Serving) -> None:
        """Update the status if it changed, with the resource's health. DeployError when the API server refuses."""
        known = with_conditions(self._before, self._found, 0, self._now())
        self._write_conditions([*self._found, *health(known, serving)], self._figures)

    def _write_conditions(self, found: list[Condition], figures: Mapping[str, Any] | None = None) -> None:
        meta = self._resource["metadata"]
        conditions = with_conditions(self._before, found, meta.get("generation", 1), self._now())
        wanted = {**(figures or {}), "conditions": conditions}
        if not differs(self._before, wanted):
            return
        known = {item["type"]: item for item in self._before.get("conditions") or ()}
        self._cluster.merge(CRD_KIND, meta["name"], {"status": wanted}, "status")
        self._before = {**self._before, **wanted}
        for item in found:
            old = known.get(item["type"], {})
            is_news = item["type"] != CONDITION_DEGRADED or item["status"] == "True"
            if item["type"] in _TOLD and is_news and any(old.get(k) != item[k] for k in ("status", "reason")):
                self._post_event(item)

    def _post_event(self, item: Condition) -> None:
        meta, when = self._resource["metadata"], self._now().astimezone(datetime.UTC)
        stamp = when.isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"apiVersion": CRD_API_VERSION, "kind": CRD_KIND, "name": meta["name"], "uid": meta["uid"]}
        self._log(f"{meta['name']}: {item['type']} {item['status']}: {item['message']}")
        self._cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
                "involvedObject": {**about, "namespace": self._cluster.namespace},
                "type": "Warning" if item["status"] == "False" or item["type"] == CONDITION_DEGRADED else "Normal",
                "reason": item["reason"],
                "message": item["message"][:_MAX_EVENT],
                "source": {"component": COMPONENT},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            }
        )


def _reason(error: JellyBeanError, kind: str) -> str:
    """The one-word `reason` of a condition for an error."""
    if isinstance(error.__cause__, NotReadyError):
        return "NotReady"
    known: list[tuple[type[JellyBeanError], str]] = [
        (DocumentError, "InvalidSpec"),
        (InfeasibleError, "Infeasible"),
        (PreflightError, "Preflight"),
        (NotReadyError, "NotReady"),
        (LockedError, BUSY),
    ]
    return next(
        (word for of, word in known if isinstance(error, of)), "Refused" if kind == CONDITION_DEPLOYED else "NoPlan"
    )
