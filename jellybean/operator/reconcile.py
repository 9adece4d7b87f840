"""Reconciles one resource: plan or re-plan, deploy, and report in its status.

Every reconciliation starts from the cluster's state; what is kept in memory only saves work. A new plan pays for the
migration from the running one (`plan --from`), and is deployed by the same steps as `jellybean deploy`.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.errors import InfeasibleError, JellyBeanError
from jellybean.operator.certificates import issued, issued_names
from jellybean.operator.conditions import Serving, condition
from jellybean.operator.fleet import ResourceFleet, discovered, stated, with_pools
from jellybean.operator.healing import Healing
from jellybean.operator.measured import MeasuredFigures
from jellybean.operator.metrics import OperatorMetrics
from jellybean.operator.pace import Pace
from jellybean.operator.permissions import Permissions
from jellybean.operator.report import Decision, Report
from jellybean.operator.resource import OperatorSpec, ResourceProject, lay_out, operator_spec, stated_profiles
from jellybean.planning.plan_file import WrittenPlan
from jellybean.planning.project_plan import plan_project, require_plan
from jellybean.planning.replan import replan_project
from jellybean_k8s import (
    CONDITION_PLANNED,
    CRD_API_VERSION,
    CRD_KIND,
    RETRY_ANNOTATION,
    Cluster,
    ClusterError,
    DeployedPlan,
    DeploymentStatus,
    DeployOptions,
    DeployStoppedError,
    NotReadyError,
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
from jellybean_solver import Verdict, from_document

Object = dict[str, Any]
POLL_S = 7.0  # seconds between two polls of nodes, profiles, pods and objects: a status is true within 10
_STATE_DIGITS = 16
_FORBIDDEN, _TERMINATED = 403, "because it is being terminated"  # answer of the API server when a namespace ends


class _FailedBeforeError(JellyBeanError):
    """The plan of this state did not become ready before; what is known of that stays in the status."""


@dataclass
class Reconciler:
    """Reconciles one resource. `nodes()`: the cluster's nodes; `stopped()`: True to stop early; `clock`: monotonic."""

    cluster: Cluster
    nodes: Callable[[], Sequence[Mapping[str, Any]]]
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    log: Callable[[str], None] = lambda text: None
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    permissions: Permissions = field(default_factory=Permissions)
    _figures: MeasuredFigures = field(init=False)
    _pace: Pace = field(default_factory=lambda: Pace(0.0))
    _healing: Healing = field(default_factory=Healing)
    _decided: tuple[str, Decision] | None = None

    def __post_init__(self) -> None:
        """Measure by the same clocks."""
        self._figures = MeasuredFigures(self.clock, self.now, self.log)

    def reconcile(self, resource: Mapping[str, Any]) -> None:
        """Reconcile if due, and write the status. UnreachableError when the API server cannot be reached."""
        app = _app(resource)
        report = Report(self.cluster, resource, app, now=self.now, clock=self.clock, log=self.log)
        status, before = self._status(resource), self._pace.runs
        is_healed = failed = False
        began_s = self.clock()
        try:
            own = operator_spec(resource)
            if own.suspend:
                self._pace.reset()
                report.find(condition(CONDITION_PLANNED, None, "Suspended", "spec.suspend: nothing is changed"))
            else:
                is_healed = status is not None and self._heal(app, status, report)
                self._reconcile_if_due(resource, own, report)
        except UnreachableError:
            raise
        except DeployStoppedError:
            return
        except JellyBeanError as error:
            report.fail(error)
            failed = True
        if self._pace.runs != before:
            self.metrics.reconciled(self.clock() - began_s, failed=failed)
        if is_healed or self._pace.runs != before:
            status = self._status(resource)
        report.measured(self._figures.read(self.cluster, app))
        report.write(_serving(status))
        self.metrics.looked_at(self.cluster.namespace, resource["metadata"]["name"], report.conditions)

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

    def _status(self, resource: Mapping[str, Any]) -> DeploymentStatus | None:
        """The status of the resource's own deployment; None while nothing of it serves."""
        return read_status(self.cluster, _app(resource)) if self._is_ours(resource) else None

    def _is_ours(self, resource: Mapping[str, Any]) -> bool:
        """True if a plan of this resource serves."""
        inventory = read_inventory(self.cluster, _app(resource))
        return inventory.current is not None and (inventory.owner or {}).get("uid") == resource["metadata"]["uid"]

    def _heal(self, app: str, status: DeploymentStatus, report: Report) -> bool:
        """Repair what serves; a Secret that is missing is brought by a deployment. True if objects were applied."""
        if any(kind == "Secret" for kind, _ in status.drift.missing):
            self._pace.reset()
        is_healed = self._healing.repair(self.cluster, app, status.drift, self.clock())
        if is_healed:
            report.healed(status.drift.words)
            self.metrics.healed(len(status.drift.keys))
        return is_healed

    def _reconcile_if_due(self, resource: Mapping[str, Any], own: OperatorSpec, report: Report) -> None:
        spec = resource["spec"]
        try:
            fleet, profiles = self._fleet(spec, own), self._profiles(spec, own)
        except JellyBeanError:
            self._pace.reset()
            raise
        again = (resource["metadata"].get("annotations") or {}).get(RETRY_ANNOTATION)
        seen = json_sha256({"spec": spec, "fleet": fleet.infrastructure, "profiles": profiles, "retry": again})
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
                self._deploy(resource, own, deployed, folder, report, seen[:_STATE_DIGITS])
        except _FailedBeforeError:
            self._pace.done(self.clock())
            report.handled()
            return
        except JellyBeanError as error:
            if self._is_ours(resource) and (isinstance(error, NotReadyError) or _is_undone(error)):
                self._pace.done(self.clock())
                report.not_ready(seen[:_STATE_DIGITS])
                note = f"annotate it with {RETRY_ANNOTATION}=1, or change it"
                raise NotReadyError(f"{error}\nit is not tried again by itself: {note}", ()) from error
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

    def _decide(self, resource: Mapping[str, Any], laid: ResourceProject, own: OperatorSpec, seen: str) -> Decision:
        """The plan to serve, cached for the same documents and running plan. InfeasibleError when there is none."""
        running = self._running(resource)
        key = f"{seen} {running['hash'] if running is not None else ''}"
        if self._decided is not None and self._decided[0] == key:
            return self._decided[1]
        limit_s = own.replan.time_limit_s
        if running is None:
            plan = require_plan(plan_project(laid.project, compare=False, time_limit_s=limit_s))
            decision = Decision(plan, plan, "Planned")
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
        self,
        resource: Mapping[str, Any],
        own: OperatorSpec,
        deployed: DeployedPlan,
        folder: Path,
        report: Report,
        state: str,
    ) -> None:
        if report.failed == state and self._is_ours(resource):
            raise _FailedBeforeError(f"plan {deployed.id} did not become ready")
        objects = render(deployed)
        record = plan_record(deployed.app, deployed.id, deployed.plan)
        issue = own.certificates == "issued"
        self.permissions.require(self.cluster, deployed.app, objects, issued_names(deployed) if issue else ())
        secrets = issued(self.cluster, deployed, folder / "certificates") if issue else ()
        served = read_inventory(self.cluster, deployed.app).current is not None

        def advance(done: float, total: float, label: str) -> None:
            if self.stopped():
                raise DeployStoppedError(f"{deployed.app}: the operator stops")
            report.deploying(deployed, f"{done:g} of {total:g}, {label}")

        options = DeployOptions(
            timeout_s=own.start_s,
            undo_failed=served,  # roll back to a running plan; a first deployment may still become ready
            in_place=own.in_place,
            owner=owner_of(resource),
            now=self.now,
            say=self.log,
            progress=advance,
        )
        try:
            outcome = deploy(self.cluster, deployed, (record, *secrets, *objects), options)
        except DeployStoppedError:
            raise
        except JellyBeanError:
            self.metrics.deployed(failed=True)
            raise
        if outcome.number is not None:
            self.metrics.deployed(failed=False)
        report.deployed(deployed, outcome.number, len(outcome.applied), len(outcome.pruned))


def _replanned(laid: ResourceProject, running: Object, horizon_h: float, limit_s: float) -> Decision:
    before = WrittenPlan(running, from_document(running))
    change = replan_project(laid.project, before, horizon_h=horizon_h, time_limit_s=limit_s)
    found = change.decision
    if found.verdict is Verdict.NONE or (found.verdict is Verdict.REPLACE and found.best is None):
        raise InfeasibleError(change.reasons, "the running plan stays")
    if found.verdict is Verdict.KEEP or found.best is None:
        return Decision(before.plan, found.running, "Kept", "; the running plan stays")
    return Decision(found.best, found.best, "Replanned", f"; instead of {str(running['hash'])[:12]}")


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


def _serving(status: DeploymentStatus | None) -> Serving:
    """What serves a resource, and what it lacks."""
    if status is None:
        return Serving()
    lacks = [*status.drift.words, *(f"{s.name}: {s.lacks}" for s in status.sets if s.lacks)]
    if status.serving is None:
        lacks.append("its Service is not there")
    if lacks:
        lacks += status.reasons
    address = f"{status.app}.{status.namespace}.svc:8001"
    return Serving(status.serving or "nothing", address, tuple(lacks))


def _is_undone(error: JellyBeanError) -> bool:
    """True if a deployment that did not become ready was taken back."""
    return isinstance(error.__cause__, NotReadyError)
