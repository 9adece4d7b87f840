"""One resource, brought to what it says: look, plan or re-plan, deploy, and say in its status how that went.

Every look is from scratch, by what the cluster holds; what is remembered between looks only saves work. A plan is
decided with what it costs to leave the running one (`plan --from`), and deployed by the same steps as by hand.
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

from jellybean.errors import DocumentError, InfeasibleError, JellyBeanError
from jellybean.operator.certificates import issued
from jellybean.operator.conditions import condition, plan_figures, with_conditions
from jellybean.operator.fleet import Found, discovered, stated, with_pools
from jellybean.operator.pace import Pace
from jellybean.operator.resource import Laid, OperatorSpec, lay_out, operator_spec, stated_profiles
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
LOOK_S = 10.0  # between looks at nodes, profiles and pods
COMPONENT = "jellybean-operator"
_MOST_EVENT = 1000
_MOST_FLEET = 1000
_FORBIDDEN, _TERMINATED = 403, "because it is being terminated"  # what the API server says of a namespace's end


@dataclass
class Reconciler:
    """Of one resource. `nodes`: all of the cluster; `stopped`: whether to leave off; times are seconds of `clock`."""

    cluster: Cluster
    nodes: Callable[[], Sequence[Mapping[str, Any]]]
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    log: Callable[[str], None] = lambda text: None
    _pace: Pace = field(default_factory=lambda: Pace(0.0))
    _decided: tuple[str, _Decision] | None = None

    def look(self, resource: Mapping[str, Any]) -> None:
        """Work on the resource if it is due, and say how it is. UnreachableError when nobody can be told."""
        report = _Report(self.cluster, resource, self.now, self.log)
        try:
            own = operator_spec(resource)
            if own.suspend:
                self._pace.again()
                report.find(condition(CONDITION_PLANNED, None, "Suspended", "spec.suspend: all is left as it is"))
            else:
                self._bring(resource, own, report)
        except UnreachableError:
            raise
        except DeployStoppedError:
            return
        except JellyBeanError as error:
            report.fail(error)
        report.find(_readiness(self.cluster, _app(resource), resource["metadata"]["uid"]))
        report.write()

    def remove(self, resource: Mapping[str, Any]) -> None:
        """Take away what was deployed for the resource, and nothing else. DeployError while pods are still there."""
        app = _app(resource)
        inventory = read_inventory(self.cluster, app)
        if (inventory.owner or {}).get("uid") != resource["metadata"]["uid"]:
            return
        try:
            undeploy(self.cluster, app, DeployOptions(now=self.now, say=self.log))
        except ClusterError as error:
            if error.status != _FORBIDDEN or _TERMINATED not in str(error):
                raise
            self.log(f"{app}: its namespace goes, and all that is in it")

    def _bring(self, resource: Mapping[str, Any], own: OperatorSpec, report: _Report) -> None:
        spec = resource["spec"]
        try:
            found, profiles = self._fleet(spec, own), self._profiles(spec, own)
        except JellyBeanError:
            self._pace.again()
            raise
        seen = json_sha256({"spec": spec, "fleet": found.infrastructure, "profiles": profiles})
        self._pace.debounce_s = own.replan.debounce_s
        if not self._pace.due(seen, self.clock()):
            return
        self.log(f"{_app(resource)}: planning for {found.told}")
        try:
            with tempfile.TemporaryDirectory(prefix="jellybean-") as text:
                folder = Path(text)
                laid = lay_out(resource, found.infrastructure, profiles, folder)
                decision = self._decide(resource, laid, own, seen)
                report.planned(decision, found.told)
                self._deploy(
                    resource, own, DeployedPlan(decision.plan, with_pools(laid.settings, found)), folder, report
                )
        except JellyBeanError:
            again_s = self._pace.failed(self.clock())
            self.log(f"{_app(resource)}: tried again after {again_s:g} s, or when something changes")
            raise
        self._pace.done(self.clock())
        report.handled()

    def _fleet(self, spec: Mapping[str, Any], own: OperatorSpec) -> Found:
        if own.discover is None:
            if "infrastructure" not in spec:
                raise JellyBeanError("spec: the fleet is either infrastructure or discover")
            return stated(spec["infrastructure"])
        return discovered(self.nodes(), own.discover, spec["discover"], spec["kubernetes"])

    def _profiles(self, spec: Mapping[str, Any], own: OperatorSpec) -> str:
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

    def _decide(self, resource: Mapping[str, Any], laid: Laid, own: OperatorSpec, seen: str) -> _Decision:
        """The plan to serve; the same again for the same documents, until it serves. InfeasibleError without one."""
        running = self._running(resource)
        key = f"{seen} {running['hash'] if running is not None else ''}"
        if self._decided is not None and self._decided[0] == key:
            return self._decided[1]
        limit_s = own.replan.time_limit_s
        if running is None:
            plan = require_plan(plan_project(laid.project, compare=False, time_limit_s=limit_s))
            decision = _Decision(plan, plan, "Planned")
        else:
            decision = _replanned(laid, running, own.replan.horizon_s / 3600.0, limit_s)
        self._decided = key, decision
        return decision

    def _running(self, resource: Mapping[str, Any]) -> Object | None:
        """The document of the plan that serves for this resource."""
        app = _app(resource)
        inventory = read_inventory(self.cluster, app)
        if inventory.current is None or (inventory.owner or {}).get("uid") != resource["metadata"]["uid"]:
            return None
        return read_plan_record(self.cluster, app, inventory.current.served)

    def _deploy(
        self, resource: Mapping[str, Any], own: OperatorSpec, deployed: DeployedPlan, folder: Path, report: _Report
    ) -> None:
        monitored = self.cluster.serves("monitoring.coreos.com/v1")
        objects = render(deployed.plan, deployed.settings, service_monitor=monitored)
        record = plan_record(deployed.app, deployed.id, deployed.plan)
        issue = own.certificates == "issued"
        secrets = issued(self.cluster, deployed, folder / "certificates") if issue else ()
        served = read_inventory(self.cluster, deployed.app).current is not None

        def go_on(_done: float, _total: float, _label: str) -> None:
            if self.stopped():
                raise DeployStoppedError(f"{deployed.app}: the operator stops")

        options = DeployOptions(
            timeout_s=own.start_s,
            undo_failed=served,  # what serves goes on alone; a first deployment may still come up
            in_place=own.in_place,
            owner=owner_of(resource),
            now=self.now,
            say=self.log,
            progress=go_on,
        )
        outcome = deploy(self.cluster, deployed, (record, *secrets, *objects), options)
        report.deployed(deployed, outcome.number, len(outcome.applied), len(outcome.pruned))


@dataclass(frozen=True)
class _Decision:
    """A plan to serve. `today`: the same by today's documents; `reason`: Planned, Replanned or Kept."""

    plan: Plan
    today: Plan
    reason: str
    note: str = ""


def _replanned(laid: Laid, running: Object, horizon_h: float, limit_s: float) -> _Decision:
    path = laid.project.directory / "running.json"
    path.write_text(json.dumps(running), encoding="utf-8")
    change = replan_project(laid.project, str(path), horizon_h=horizon_h, time_limit_s=limit_s)
    found = change.decision
    if found.verdict is Verdict.NONE or (found.verdict is Verdict.REPLACE and found.best is None):
        raise InfeasibleError(change.planned.reasons, "what serves goes on as it is")
    if found.verdict is Verdict.KEEP or found.best is None:
        return _Decision(change.before, found.running, "Kept", "; the running plan stays")
    return _Decision(found.best, found.best, "Replanned", f"; instead of {str(running['hash'])[:12]}")


class _Report:
    """What is found of a resource in one look: written to its status and told in events, where it is new."""

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
        figures = {**plan_figures(decision.today), "plan": str(to_document(decision.plan)["hash"])[:12]}
        self._figures |= {**figures, "fleet": fleet[:_MOST_FLEET]}
        accuracy = "" if figures["accuracy"] is None else f", accuracy {figures['accuracy']:g}"
        text = f"plan {figures['plan']}: {figures['costUsdPerHour']:g} USD/h{accuracy}, gap {figures['gap']}"
        self.find(condition(CONDITION_PLANNED, True, decision.reason, text + decision.note))

    def deployed(self, deployed: DeployedPlan, number: int | None, applied: int, pruned: int) -> None:
        self._figures |= {"served": deployed.id, **({"revision": number} if number is not None else {})}
        if number is not None or not self._was(CONDITION_DEPLOYED):
            text = f"plan {deployed.id} serves: {applied} objects applied, {pruned} pruned"
            self.find(condition(CONDITION_DEPLOYED, True, "Deployed", text))

    def handled(self) -> None:
        self._figures["observedGeneration"] = self._resource["metadata"].get("generation", 1)

    def fail(self, error: JellyBeanError) -> None:
        self.handled()
        kind = (
            CONDITION_DEPLOYED if any(item["type"] == CONDITION_PLANNED for item in self._found) else CONDITION_PLANNED
        )
        self.find(condition(kind, False, _reason(error, kind), str(error)))

    def write(self) -> None:
        """Only what changed; DeployError where the API server refuses it."""
        meta = self._resource["metadata"]
        conditions = with_conditions(self._before, self._found, meta.get("generation", 1), self._now())
        wanted = {**self._figures, "conditions": conditions}
        if any(self._before.get(key) != value for key, value in wanted.items()):
            known = {item["type"]: item for item in self._before.get("conditions") or ()}
            self._cluster.merge(CRD_KIND, meta["name"], {"status": wanted}, "status")
            for item in self._found:
                old = known.get(item["type"], {})
                if any(old.get(key) != item[key] for key in ("status", "reason", "message")):
                    self._tell(item)

    def _was(self, kind: str) -> bool:
        return any(i["type"] == kind and i["status"] == "True" for i in self._before.get("conditions") or ())

    def _tell(self, item: Object) -> None:
        """An event with the words of a condition."""
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
                "message": item["message"][:_MOST_EVENT],
                "source": {"component": COMPONENT},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            }
        )


def owner_of(resource: Mapping[str, Any]) -> Object:
    """The reference that objects of the same namespace carry."""
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
    """One word for a condition."""
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
    """Whether clients are served by a plan that is whole, and is this resource's own."""
    inventory = read_inventory(cluster, app)
    if inventory.current is None or (inventory.owner or {}).get("uid") != uid:
        return condition(CONDITION_READY, False, "NothingServes", "no plan serves yet")
    found = read_status(cluster, app)
    lacking = [
        *(f"{name} is missing" for name in found.missing),
        *(f"{s.name}: {s.lacks}" for s in found.sets if s.lacks),
    ]
    if found.serving is None or lacking:
        return condition(
            CONDITION_READY, False, "NotReady", "\n".join([*lacking, *found.reasons]) or "its Service is not there"
        )
    return condition(
        CONDITION_READY, True, "Serving", f"plan {found.serving} serves at {app}.{cluster.namespace}.svc:8001"
    )
