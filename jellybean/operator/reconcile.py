"""Reconciles one resource: plan or re-plan, deploy, and report in its status.

Every reconciliation starts from the cluster's state; what is kept in memory only saves work. A new plan pays for the
migration from the running one (`plan --from`), and is deployed by the same steps as `jellybean deploy`.
"""

from __future__ import annotations

import datetime
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.documents import Project
from jellybean.errors import DocumentError, InfeasibleError, JellyBeanError
from jellybean.operator.certificates import issued
from jellybean.operator.conditions import condition, differs, plan_figures, with_conditions
from jellybean.operator.fleet import ResourceFleet, discovered, stated, with_pools
from jellybean.operator.measured import MeasuredFigures
from jellybean.operator.pace import Pace
from jellybean.operator.resource import OperatorSpec, ResourceProject, lay_out, operator_spec, stated_profiles
from jellybean.planning.project_plan import plan_project, require_plan
from jellybean.planning.replan import replan_project
from jellybean_k8s import (
    CONDITION_DEPLOYED,
    CONDITION_PLANNED,
    CONDITION_READY,
    CRD_API_VERSION,
    CRD_KIND,
    Cluster,
    ClusterError,
    DeployedPlan,
    DeployOptions,
    DeployStoppedError,
    LockedError,
    NotReadyError,
    PreflightError,
    UnreachableError,
    deploy,
    deployed_plan,
    deployment_name,
    json_sha256,
    plan_record,
    read_inventory,
    read_plan_record,
    read_status,
    render,
    undeploy,
)
from jellybean_solver import Plan, Verdict, to_document

Object = dict[str, Any]
POLL_S = 10.0  # seconds between two polls of nodes, profiles and pods
COMPONENT = "jellybean-operator"
_MAX_EVENT = 1000
_MAX_FLEET = 1000
_FORBIDDEN, _TERMINATED = 403, "because it is being terminated"  # answer of the API server when a namespace ends


@dataclass
class Reconciler:
    """Reconciles one resource. `nodes()`: the cluster's nodes; `stopped()`: True to stop early; `clock`: monotonic."""

    cluster: Cluster
    nodes: Callable[[], Sequence[Mapping[str, Any]]]
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    log: Callable[[str], None] = lambda text: None
    _figures: MeasuredFigures = field(init=False)
    _pace: Pace = field(default_factory=lambda: Pace(0.0))
    _decided: tuple[str, _Decision] | None = None

    def __post_init__(self) -> None:
        """Measure by the same clocks."""
        self._figures = MeasuredFigures(self.clock, self.now, self.log)

    def reconcile(self, resource: Mapping[str, Any]) -> None:
        """Reconcile if due, and write the status. UnreachableError when the API server cannot be reached."""
        report = _Report(self.cluster, resource, self.now, self.log)
        try:
            own = operator_spec(resource)
            if own.suspend:
                self._pace.reset()
                report.find(condition(CONDITION_PLANNED, None, "Suspended", "spec.suspend: nothing is changed"))
            else:
                self._reconcile_if_due(resource, own, report)
        except UnreachableError:
            raise
        except DeployStoppedError:
            return
        except JellyBeanError as error:
            report.fail(error)
        report.find(_readiness(self.cluster, _app(resource), resource["metadata"]["uid"]))
        report.measured(self._figures.read(self.cluster, _app(resource)))
        report.write()

    def remove(self, resource: Mapping[str, Any]) -> None:
        """Delete the objects deployed for the resource. DeployError while its pods still exist."""
        app = _app(resource)
        inventory = read_inventory(self.cluster, app)
        if (inventory.owner or {}).get("uid") != resource["metadata"]["uid"]:
            return
        try:
            undeploy(self.cluster, app, DeployOptions(now=self.now, say=self.log))
        except ClusterError as error:
            if error.status != _FORBIDDEN or _TERMINATED not in str(error):
                raise
            self.log(f"{app}: its namespace is being deleted with everything in it")

    def _reconcile_if_due(self, resource: Mapping[str, Any], own: OperatorSpec, report: _Report) -> None:
        spec = resource["spec"]
        try:
            fleet, profiles = self._fleet(spec, own), self._profiles(spec, own)
        except JellyBeanError:
            self._pace.reset()
            raise
        seen = json_sha256({"spec": spec, "fleet": fleet.infrastructure, "profiles": profiles})
        self._pace.debounce_s = own.replan.debounce_s
        if not self._pace.due(seen, self.clock()):
            return
        self.log(f"{_app(resource)}: planning for {fleet.description}")
        try:
            with tempfile.TemporaryDirectory(prefix="jellybean-") as text:
                folder = Path(text)
                laid = lay_out(resource, fleet.infrastructure, profiles, folder)
                decision = self._decide(resource, laid, own, seen)
                report.planned(decision, fleet.description)
                monitored = self.cluster.serves("monitoring.coreos.com/v1")
                settings = with_pools(laid.settings, fleet)
                deployed = deployed_plan(decision.plan, settings, service_monitor=monitored)
                self._deploy(resource, own, deployed, folder, report)
        except JellyBeanError:
            again_s = self._pace.failed(self.clock())
            self.log(f"{_app(resource)}: tried again after {again_s:g} s, or when something changes")
            raise
        self._pace.done(self.clock())
        report.handled()

    def _fleet(self, spec: Mapping[str, Any], own: OperatorSpec) -> ResourceFleet:
        if own.discover is None:
            if "infrastructure" not in spec:
                raise JellyBeanError("spec: the fleet is either infrastructure or discover")
            return stated(spec["infrastructure"])
        return discovered(self.nodes(), own.discover, spec["discover"], spec["kubernetes"])

    def _profiles(self, spec: Mapping[str, Any], own: OperatorSpec) -> str:
        if "workflows" in spec:  # each has its own
            return ""
        if own.profiles_from is None:
            if "profiles" not in spec:
                raise JellyBeanError("spec: either profiles or profiles_from")
            return stated_profiles(spec)
        name, key = own.profiles_from.config_map, own.profiles_from.key
        found = self.cluster.get("ConfigMap", name)
        text = (found or {}).get("data", {}).get(key)
        if text is None:
            where = f"ConfigMap {name}"
            command = f"kubectl create configmap {name} --from-file={key}"
            raise JellyBeanError(f"there is no {where}: {command}" if found is None else f"{where} has no key {key}")
        return str(text)

    def _decide(self, resource: Mapping[str, Any], laid: ResourceProject, own: OperatorSpec, seen: str) -> _Decision:
        """The plan to serve, cached for the same documents and running plan. InfeasibleError when there is none."""
        running = self._running(resource)
        key = f"{seen} {running['hash'] if running is not None else ''}"
        if self._decided is not None and self._decided[0] == key:
            return self._decided[1]
        limit_s = own.replan.time_limit_s
        one = laid.project
        is_soft = isinstance(one, Project) and one.workflow.slo.soft_latency_p99_s is not None
        if running is None or is_soft:  # re-planning knows no penalty
            plan = require_plan(plan_project(laid.project, compare=False, time_limit_s=limit_s))
            decision = _Decision(plan, plan, "Planned")
        else:
            decision = _replanned(laid, running, own.replan.horizon_s / 3600.0, limit_s)
        self._decided = key, decision
        return decision

    def _running(self, resource: Mapping[str, Any]) -> Object | None:
        """The document of the resource's running plan; None when none runs."""
        app = _app(resource)
        inventory = read_inventory(self.cluster, app)
        if inventory.current is None or (inventory.owner or {}).get("uid") != resource["metadata"]["uid"]:
            return None
        return read_plan_record(self.cluster, app, inventory.current.served)

    def _deploy(
        self, resource: Mapping[str, Any], own: OperatorSpec, deployed: DeployedPlan, folder: Path, report: _Report
    ) -> None:
        objects = render(deployed)
        record = plan_record(deployed.app, deployed.id, deployed.plan)
        issue = own.certificates == "issued"
        secrets = issued(self.cluster, deployed, folder / "certificates") if issue else ()
        served = read_inventory(self.cluster, deployed.app).current is not None

        def check_stop(_done: float, _total: float, _label: str) -> None:
            if self.stopped():
                raise DeployStoppedError(f"{deployed.app}: the operator stops")

        options = DeployOptions(
            timeout_s=own.start_s,
            undo_failed=served,  # roll back to a running plan; a first deployment may still become ready
            in_place=own.in_place,
            owner=owner_of(resource),
            now=self.now,
            say=self.log,
            progress=check_stop,
        )
        outcome = deploy(self.cluster, deployed, (record, *secrets, *objects), options)
        report.deployed(deployed, outcome.number, len(outcome.applied), len(outcome.pruned))


@dataclass(frozen=True)
class _Decision:
    """A plan to serve. `rescored`: this plan evaluated by current documents; `reason`: Planned, Replanned or Kept."""

    plan: Plan
    rescored: Plan
    reason: str
    note: str = ""


def _replanned(laid: ResourceProject, running: Object, horizon_h: float, limit_s: float) -> _Decision:
    path = laid.project.directory / "running.json"
    path.write_text(json.dumps(running), encoding="utf-8")
    change = replan_project(laid.project, str(path), horizon_h=horizon_h, time_limit_s=limit_s)
    found = change.decision
    if found.verdict is Verdict.NONE or (found.verdict is Verdict.REPLACE and found.best is None):
        raise InfeasibleError(change.planned.reasons, "the running plan stays")
    if found.verdict is Verdict.KEEP or found.best is None:
        return _Decision(change.before, found.running, "Kept", "; the running plan stays")
    return _Decision(found.best, found.best, "Replanned", f"; instead of {str(running['hash'])[:12]}")


class _Report:
    """Findings of one reconciliation, written to the status, and posted as events where they changed."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Mapping[str, Any],
        now: Callable[[], datetime.datetime],
        log: Callable[[str], None],
    ) -> None:
        self._cluster, self._resource, self._now, self._log = cluster, resource, now, log
        self._before: Mapping[str, Any] = resource.get("status") or {}
        self._found: list[Object] = []
        self._figures: Object = {"name": _app(resource)}

    def find(self, item: Object) -> None:
        self._found.append(item)

    def planned(self, decision: _Decision, fleet: str) -> None:
        figures = {**plan_figures(decision.rescored), "plan": str(to_document(decision.plan)["hash"])[:12]}
        self._figures |= {**figures, "fleet": fleet[:_MAX_FLEET]}
        accuracy = "" if figures["accuracy"] is None else f", accuracy {figures['accuracy']:g}"
        text = f"plan {figures['plan']}: {figures['costUsdPerHour']:g} USD/h{accuracy}, gap {figures['gap']}"
        self.find(condition(CONDITION_PLANNED, True, decision.reason, text + decision.note))

    def deployed(self, deployed: DeployedPlan, number: int | None, applied: int, pruned: int) -> None:
        self._figures |= {"served": deployed.id, **({"revision": number} if number is not None else {})}
        if number is not None or not self._was(CONDITION_DEPLOYED):
            text = f"plan {deployed.id} serves: {applied} objects applied, {pruned} pruned"
            self.find(condition(CONDITION_DEPLOYED, True, "Deployed", text))

    def measured(self, figures: Object | None) -> None:
        self._figures["measured"] = figures

    def handled(self) -> None:
        self._figures["observedGeneration"] = self._resource["metadata"].get("generation", 1)

    def fail(self, error: JellyBeanError) -> None:
        self.handled()
        kind = (
            CONDITION_DEPLOYED if any(item["type"] == CONDITION_PLANNED for item in self._found) else CONDITION_PLANNED
        )
        self.find(condition(kind, False, _reason(error, kind), str(error)))

    def write(self) -> None:
        """Update the status if it changed. DeployError when the API server refuses."""
        meta = self._resource["metadata"]
        conditions = with_conditions(self._before, self._found, meta.get("generation", 1), self._now())
        wanted = {**self._figures, "conditions": conditions}
        if differs(self._before, wanted):
            known = {item["type"]: item for item in self._before.get("conditions") or ()}
            self._cluster.merge(CRD_KIND, meta["name"], {"status": wanted}, "status")
            for item in self._found:
                old = known.get(item["type"], {})
                if any(old.get(key) != item[key] for key in ("status", "reason", "message")):
                    self._post_event(item)

    def _was(self, kind: str) -> bool:
        return any(i["type"] == kind and i["status"] == "True" for i in self._before.get("conditions") or ())

    def _post_event(self, item: Object) -> None:
        """Post a condition as an event."""
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
                "type": "Warning" if item["status"] == "False" else "Normal",
                "reason": item["reason"],
                "message": item["message"][:_MAX_EVENT],
                "source": {"component": COMPONENT},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            }
        )


def owner_of(resource: Mapping[str, Any]) -> Object:
    """The owner reference for the resource's objects."""
    meta = resource["metadata"]
    return {
        "apiVersion": CRD_API_VERSION,
        "kind": CRD_KIND,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def _app(resource: Mapping[str, Any]) -> str:
    return deployment_name((resource["spec"].get("kubernetes") or {}).get("name") or resource["metadata"]["name"])


def _reason(error: JellyBeanError, kind: str) -> str:
    """The one-word `reason` of a condition for an error."""
    if isinstance(error.__cause__, NotReadyError):
        return "NotReady"
    known: list[tuple[type[JellyBeanError], str]] = [
        (DocumentError, "InvalidSpec"),
        (InfeasibleError, "Infeasible"),
        (PreflightError, "Preflight"),
        (NotReadyError, "NotReady"),
        (LockedError, "Busy"),
    ]
    return next(
        (word for of, word in known if isinstance(error, of)), "Refused" if kind == CONDITION_DEPLOYED else "NoPlan"
    )


def _readiness(cluster: Cluster, app: str, uid: str) -> Object:
    """The condition Ready: all pods of the resource's own plan serve."""
    inventory = read_inventory(cluster, app)
    if inventory.current is None or (inventory.owner or {}).get("uid") != uid:
        return condition(CONDITION_READY, False, "NothingServes", "no plan serves yet")
    found = read_status(cluster, app)
    lacking = [
        *found.drift.words,
        *(f"{s.name}: {s.lacks}" for s in found.sets if s.lacks),
    ]
    if found.serving is None or lacking:
        return condition(
            CONDITION_READY, False, "NotReady", "\n".join([*lacking, *found.reasons]) or "its Service is not there"
        )
    return condition(
        CONDITION_READY, True, "Serving", f"plan {found.serving} serves at {app}.{cluster.namespace}.svc:8001"
    )
