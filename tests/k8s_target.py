"""A namespace to deploy to: of a mock API server, or of a real one where JELLYBEAN_TEST_KUBECONFIG names it.

The real one needs rights on all of the namespace JELLYBEAN_TEST_NAMESPACE (pods/status too), and where nodes may be
listed, some with jellybean.dev/tier=edge and =cloud. Tests of the custom resource also need rights on its definition.
No container has to run: whatever a kubelet would do to pods of ours is done here, unless a real one comes before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from jellybean_k8s import DeployError, PoolSettings, render, service_names
from jellybean_k8s.cluster.certificates.rendered import certificate_secrets
from jellybean_k8s.cluster.cluster import PATHS, Cluster, ClusterError, connect
from jellybean_k8s.cluster.compare import object_key
from jellybean_k8s.cluster.deploy import deploy, undeploy
from jellybean_k8s.cluster.phases import DeployResult
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.cluster.status import DeploymentStatus, read_status
from jellybean_k8s.manifests.identity import deployed_plan
from jellybean_k8s.manifests.settings import DeploymentSettings
from jellybean_k8s.resource.crd import CRD_KIND, CRD_NAME
from jellybean_solver.model.plan import Plan
from tests import k8s_plans, report_plans
from tests.api_server import RunningServer
from tests.k8s_certificates import equip
from tests.k8s_plans import with_models
from tests.kubelet_mounts import unmounted

REAL = os.environ.get("JELLYBEAN_TEST_KUBECONFIG")
only_mock = pytest.mark.skipif(bool(REAL), reason="makes and takes away nodes, which goes beyond a namespace")
only_real = pytest.mark.skipif(not REAL, reason="JELLYBEAN_TEST_KUBECONFIG names no cluster: a mock one grants nothing")

OWN_PREFIX = "app.kubernetes.io/managed-by=jellybean,app.kubernetes.io/instance=digits"  # others' may stand beside it
_MADE = frozenset(PATHS) - {"Event", "Node", "CustomResourceDefinition", CRD_KIND}
PLAN = with_models(report_plans.digits())
OTHER = dataclasses.replace(PLAN, hop_s=PLAN.hop_s + 0.001)
QUICK = DeployOptions(timeout_s=120.0 if REAL else 60.0)
MOCK_NAMESPACE = "shop"
SOON_S = 20.0 if REAL else 1.5  # that controllers need to make pods
# a real cluster may have one node of a tier
SETTINGS = dataclasses.replace(k8s_plans.SETTINGS, pools={"edge-box": PoolSettings(one_per_node=False)} if REAL else {})


def with_pools(settings: DeploymentSettings = SETTINGS, **pools: PoolSettings) -> DeploymentSettings:
    """The settings with these pool settings."""
    return dataclasses.replace(settings, pools={**settings.pools, **pools})


Fault = Callable[[str, str], int | None]  # method, path -> the status that is answered instead; None lets it through


class Wire:
    """Records requests between a Cluster and its API server, and injects faults, like the mock server."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.fault: Fault | None = None
        self.words = "a fault of the test"

    def attach(self, cluster: Cluster) -> Cluster:
        ask = cluster._dynamic.request

        def request(method: str, path: str, body: Any = None, **params: Any) -> Any:
            self.log.append((method.upper(), path, params))
            code = self.fault(method.upper(), path) if self.fault is not None else None
            if code is None:
                return ask(method, path, body=body, **params)
            refused = ApiException(status=code, reason="x")
            refused.body = json.dumps({"message": self.words})
            raise refused

        cluster._dynamic.request = request
        return cluster


@dataclass
class Target:
    """A namespace, and a simulated kubelet with its own connection."""

    cluster: Cluster
    kubelet: Cluster
    certificates: Path
    server: RunningServer | None
    wire: Any  # Wire, or the mock server itself
    broken: set[str] = field(default_factory=set)  # pods whose names have one of these parts never get ready
    idle: bool = False
    _foreign: list[tuple[str, str]] = field(default_factory=list)

    def deploy(
        self, plan: Plan = PLAN, settings: DeploymentSettings = SETTINGS, options: DeployOptions = QUICK
    ) -> DeployResult:
        return deploy(self.cluster, deployed_plan(plan, settings), self.objects(plan, settings), options)

    def objects(self, plan: Plan = PLAN, settings: DeploymentSettings = SETTINGS) -> Sequence[Any]:
        return (
            *certificate_secrets(deployed_plan(plan, settings), self.certificates),
            *render(deployed_plan(plan, settings)),
        )

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.cluster.list(kind, OWN_PREFIX)}

    def serving(self) -> str:
        return str(read_status(self.cluster, "digits").serving)

    def well(self) -> DeploymentStatus:
        """The status once all runs; who looks after nodes may call a pod unready for a moment where no kubelet is."""

        def found() -> DeploymentStatus | None:
            status = read_status(self.cluster, "digits")
            return status if status.is_well else None

        status: DeploymentStatus = self.eventually(found)
        return status

    def writes(self) -> list[tuple[str, str]]:
        """Changes since the last call, without Leases."""
        dry = ("dryRun", "dry_run")
        found = [
            (method, path)
            for method, path, params in self.wire.log
            if method != "GET" and not any(params.get(name) == "All" for name in dry)
        ]
        self.wire.log.clear()
        return [item for item in found if "/pods/" not in item[1] and "/leases" not in item[1]]

    def impatient(self, patience_s: float) -> Cluster:
        """The same namespace through a client with less patience."""
        found = dataclasses.replace(self.cluster, patience_s=patience_s)
        return self.wire.attach(found) if isinstance(self.wire, Wire) else found

    def create(self, item: Any) -> Any:
        """An object that is not of a deployment; gone when the test ends, and before it where one was left."""
        self.drop(*object_key(item))
        self._foreign.append(object_key(item))
        return self.cluster.create(item)

    def drop(self, kind: str, name: str) -> None:
        there = self.cluster.get(kind, name)
        if there is not None:
            if kind == CRD_KIND and there["metadata"].get("finalizers"):  # whose operator is gone
                self.cluster.merge(kind, name, {"metadata": {"finalizers": None}})
            self.cluster.delete(kind, name, there["metadata"]["uid"])

    def eventually(self, found: Callable[[], Any], within_s: float = 120.0 if REAL else 60.0) -> Any:
        """Poll `found` until it returns something."""
        until = time.monotonic() + within_s
        while not (value := found()):
            assert time.monotonic() < until, f"nothing after {within_s:g} s"
            time.sleep(0.5 if REAL else 0.02)
        return value

    def clean(self) -> None:
        """As it was found: nothing of ours is left, its pods included."""
        self.broken.clear()
        self.idle = False
        self.wire.fault = None
        for kind, name in [*self._foreign, (CRD_KIND, "digits")]:
            with contextlib.suppress(ClusterError):  # this user may know nothing of the resource
                self.drop(kind, name)
        with contextlib.suppress(DeployError):
            undeploy(self.cluster, "digits", QUICK)
        for name in ("digits-deploy", "jellybean-operator"):
            self.drop("Lease", name)
        self.eventually(lambda: not any(self.names(kind) for kind in _MADE))

    def report_pods(self) -> None:
        """What kubelets would: all pods of ours that can run are ready, those that must leave do."""
        for pod in self.kubelet.list("Pod", OWN_PREFIX):
            name, meta = pod["metadata"]["name"], pod["metadata"]
            if "deletionTimestamp" in meta:
                self._gone(name, meta["uid"])
                continue
            ready = any(
                c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ())
            )
            if not ready and not any(part in name for part in self.broken) and not self._unmounted(pod):
                conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
                with contextlib.suppress(ClusterError):
                    self.kubelet.merge(
                        "Pod", name, {"status": {"phase": "Running", "conditions": conditions}}, "status"
                    )

    def _unmounted(self, pod: Any) -> str:
        """Of a real cluster nothing is asked: its user may not be allowed to list Secrets."""
        if self.server is None:
            return ""
        return unmounted(pod, *(list(self.server.api.of(kind).values()) for kind in ("secrets", "configmaps")))

    def _gone(self, name: str, uid: str) -> None:
        """A pod that was bound to a node leaves when its kubelet says so."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(ClusterError):
            self.kubelet._call("delete", f"/api/v1/namespaces/{self.kubelet.namespace}/pods/{name}", body=body)


def mock_cluster(server: RunningServer, patience_s: float = 5.0) -> Cluster:
    configuration = client.Configuration()
    configuration.host = server.url
    return Cluster(client.ApiClient(configuration), MOCK_NAMESPACE, patience_s)


def claim(name: str) -> dict[str, Any]:
    """A PersistentVolumeClaim."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def secret(name: str, *keys: str) -> dict[str, Any]:
    """A Secret with these keys."""
    data = dict.fromkeys(keys, "eA==")
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def node(name: str, tier: str, gpus: int = 0, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "uid": name, "labels": {"jellybean.dev/tier": tier, **labels}}
    resources = {"cpu": "8", "memory": "8Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": resources}}


@contextlib.contextmanager
def running_target(folder: Path) -> Iterator[Target]:
    """Certificates of all workers that plans here have are in the folder."""
    equip(folder, hosts=service_names("digits", os.environ["JELLYBEAN_TEST_NAMESPACE"] if REAL else MOCK_NAMESPACE))
    with contextlib.ExitStack() as stack:
        server = None if REAL else stack.enter_context(RunningServer())
        if server is not None:
            cluster = mock_cluster(server)
            for item in (node("box-a", "edge"), node("box-b", "edge"), node("big", "cloud", 2)):
                server.api.store["nodes", "", item["metadata"]["name"]] = item
            found = Target(cluster, cluster, folder, server, server.api)
        else:
            cluster, kubelet = (
                connect(Path(str(REAL)), None, os.environ["JELLYBEAN_TEST_NAMESPACE"]) for _ in range(2)
            )
            wire = Wire()
            found = Target(wire.attach(cluster), kubelet, folder, None, wire)
        stop = threading.Event()
        thread = threading.Thread(target=_report, args=(found, stop), daemon=True)
        thread.start()
        if REAL:
            found.clean()
            found.wire.log.clear()
        yield found
        if REAL:
            found.clean()
        stop.set()
        thread.join()


def _report(found: Target, stop: threading.Event) -> None:
    while not stop.wait(0.02 if found.server is not None else 0.5):
        if not found.idle:
            with contextlib.suppress(DeployError):
                found.report_pods()


def define(target: Target, definition: Any) -> None:
    """Make the cluster know the custom resource; the test is skipped where this user may not."""
    if target.server is not None:
        (version,) = definition["spec"]["versions"]
        target.server.api.schemas["workflows"] = version["schema"]["openAPIV3Schema"]
        return
    try:
        target.cluster.apply(definition, force=True)
    except ClusterError as error:
        if error.status != 403:
            raise
        pytest.skip(f"this user may not define {CRD_NAME}")

    def established() -> bool:
        there = target.cluster.get("CustomResourceDefinition", CRD_NAME) or {}
        conditions = (there.get("status") or {}).get("conditions") or ()
        return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)

    target.eventually(established)

    def served() -> bool:  # some seconds after that
        with contextlib.suppress(ClusterError):
            return target.cluster._call("get", target.cluster._path(CRD_KIND)) is not None
        return False

    target.eventually(served)
