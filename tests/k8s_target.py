"""A namespace to deploy to: of a mock API server, or of a real one where JELLYBEAN_TEST_KUBECONFIG names it.

No container runs: whatever a kubelet would report of pods is reported here. Nodes are `NODES` when a test starts.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from jellybean_k8s import (
    CRD_KIND,
    Cluster,
    ClusterError,
    DeployError,
    DeploymentSettings,
    DeploymentStatus,
    DeployOptions,
    DeployResult,
    PoolSettings,
    certificate_secrets,
    deploy,
    deployed_plan,
    object_key,
    read_status,
    render,
    service_names,
)
from jellybean_solver import Plan
from tests import k8s_plans, report_plans
from tests.api_objects import selected
from tests.api_server import RunningServer
from tests.k8s_certificates import equip
from tests.k8s_plans import with_models
from tests.k8s_real import NODES, REAL, RealCluster
from tests.kubelet_mounts import unmounted
from tests.support.skips import Absent

NEEDS_CONTAINERS, UNLIKE_APIS = Absent.CONTAINERS, Absent.UNLIKE_APIS
real_only = pytest.mark.skipif(
    not REAL, reason=f"{Absent.CLUSTER}: a mock API server grants nothing, and asks no kubelet"
)


def mock_only(reason: Absent) -> pytest.MarkDecorator:
    """A test for the mock API server alone."""
    return pytest.mark.skipif(bool(REAL), reason=reason)


OWN_PREFIX = "app.kubernetes.io/managed-by=jellybean,app.kubernetes.io/instance=digits"  # others' may stand beside it
PLAN = with_models(report_plans.digits())
OTHER = dataclasses.replace(PLAN, hop_s=PLAN.hop_s + 0.001)
QUICK = DeployOptions(timeout_s=120.0 if REAL else 60.0)
MOCK_NAMESPACE = "shop"
SOON_S = 5.0 if REAL else 1.5  # that controllers need to make pods
SETTINGS = k8s_plans.SETTINGS


def with_pools(settings: DeploymentSettings = SETTINGS, **pools: PoolSettings) -> DeploymentSettings:
    """The settings with these pool settings."""
    return dataclasses.replace(settings, pools={**settings.pools, **pools})


Fault = Callable[[str, str], int | None]  # method, path -> the status that is answered instead; None lets it through


class Wire:
    """Records requests of a client to its API server, and injects faults: other clients notice nothing."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, dict[str, str]]] = []  # method, path, parameters
        self.fault: Fault | None = None
        self.words = "a fault of the test"

    def attach(self, cluster: Cluster) -> Cluster:
        """To the client under a cluster, which those that are made of it share."""
        call = cluster.api.call_api

        def call_api(method: str, url: str, *more: Any, **options: Any) -> Any:
            parts = urllib.parse.urlsplit(url)
            self.log.append((method, parts.path, dict(urllib.parse.parse_qsl(parts.query))))
            code = self.fault(method, parts.path) if self.fault is not None else None
            if code is None:
                return call(method, url, *more, **options)
            refused = ApiException(status=code, reason="x")
            refused.body = json.dumps({"message": self.words})
            raise refused

        cluster.api.call_api = call_api
        return cluster


@dataclass
class Target:
    """A namespace, and a simulated kubelet with its own connection. Either `server` or `real` is there."""

    cluster: Cluster
    kubelet: Cluster
    certificates: Path
    server: RunningServer | None
    real: RealCluster | None
    wire: Wire
    broken: set[str] = field(default_factory=set)  # pods whose names have one of these parts never get ready
    idle: bool = False

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
        changes = [
            (method, path)
            for method, path, params in self.wire.log
            if method != "GET" and params.get("dryRun") != "All" and "/leases" not in path
        ]
        self.wire.log.clear()
        return changes

    def access(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The API server and the user, as a kubeconfig has them."""
        return self.real.access() if self.server is None else ({"server": self.server.url}, {})

    def impatient(self, patience_s: float) -> Cluster:
        """The same namespace through a client with less patience."""
        return dataclasses.replace(self.cluster, patience_s=patience_s)

    def another_client(self) -> Cluster:
        """Another client of the same namespace, whose requests meet no fault."""
        return mock_cluster(self.server) if self.real is None else self.real.connect(self.cluster.namespace)

    def create(self, item: Any) -> Any:
        """An object that is not of a deployment; replaces one of its name."""
        self.drop(*object_key(item))
        return self.cluster.create(item)

    def drop(self, kind: str, name: str) -> None:
        there = self.cluster.get(kind, name)
        if there is not None:
            if kind == CRD_KIND and there["metadata"].get("finalizers"):  # whose operator is gone
                self.cluster.merge(kind, name, {"metadata": {"finalizers": None}})
            self.cluster.delete(kind, name, there["metadata"]["uid"])
            self.eventually(lambda: self.cluster.get(kind, name) is None)  # a claim is in use until its pods are gone

    def set_node(self, item: Any) -> None:
        """Make a node, or replace its labels, its spec and its size."""
        if self.real is not None:
            self.real.set_node(item)
        elif self.server is not None:
            self.server.api.store["nodes", "", item["metadata"]["name"]] = item

    def remove_node(self, name: str) -> None:
        if self.real is not None:
            self.real.remove_node(name)
        elif self.server is not None:
            del self.server.api.store["nodes", "", name]

    def nodes(self) -> list[Any]:
        """The nodes of the tests, without those that a real cluster has besides."""
        return self.cluster.list("Node") if self.real is None else self.real.nodes()

    def eventually(self, found: Callable[[], Any], within_s: float = 120.0 if REAL else 60.0) -> Any:
        """Poll `found` until it returns something."""
        until = time.monotonic() + within_s
        while not (value := found()):
            assert time.monotonic() < until, f"nothing after {within_s:g} s"
            time.sleep(0.1 if REAL else 0.02)
        return value

    def report_pods(self) -> None:
        """What kubelets would: all pods of ours that can run are ready, those that must leave do."""
        for pod in self._pods():
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

    def _pods(self) -> list[Any]:
        if self.server is None:
            return self.kubelet.list("Pod", OWN_PREFIX)
        return [pod for pod in self._stored("pods") if selected(pod, OWN_PREFIX)]

    def _unmounted(self, pod: Any) -> str:
        if self.server is None:
            return unmounted(pod, self.kubelet.list("Secret"), self.kubelet.list("ConfigMap"))
        return unmounted(pod, self._stored("secrets"), self._stored("configmaps"))

    def _stored(self, plural: str) -> list[Any]:
        """What the mock server has, without a request: many of them each second would cost more than the test."""
        assert self.server is not None
        return [item for (kind, _, _), item in list(self.server.api.store.items()) if kind == plural]

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


@contextlib.contextmanager
def running_target(folder: Path, real: RealCluster | None = None) -> Iterator[Target]:
    """A namespace of the real cluster, or else a mock server. The folder gets certificates of all workers."""
    with contextlib.ExitStack() as stack:
        if real is None:
            target = _mock_target(folder, stack.enter_context(RunningServer()))
        else:
            real.restore_nodes()
            target = _real_target(folder, real, stack.enter_context(real.namespace()))
        equip(folder, hosts=service_names("digits", target.cluster.namespace))
        stop = threading.Event()
        thread = threading.Thread(target=_report, args=(target, stop), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        yield target


def _mock_target(folder: Path, server: RunningServer) -> Target:
    for name, item in NODES.items():
        server.api.store["nodes", "", name] = copy.deepcopy(item)
    wire = Wire()
    return Target(wire.attach(mock_cluster(server)), mock_cluster(server), folder, server, None, wire)


def _real_target(folder: Path, real: RealCluster, namespace: str) -> Target:
    wire = Wire()
    return Target(wire.attach(real.connect(namespace)), real.connect(namespace), folder, None, real, wire)


_SERVICE_MONITORS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "servicemonitors.monitoring.coreos.com",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@contextlib.contextmanager
def monitored(target: Target) -> Iterator[None]:
    """The cluster knows ServiceMonitors meanwhile."""
    if target.server is not None:
        target.server.api.monitoring = True
    elif target.real is not None:
        target.real.define(_SERVICE_MONITORS)
    yield
    if target.real is not None:
        target.real.undefine(_SERVICE_MONITORS["metadata"]["name"])


def _report(found: Target, stop: threading.Event) -> None:
    while not stop.wait(0.02 if found.server is not None else 0.1):
        if not found.idle:
            with contextlib.suppress(DeployError):
                found.report_pods()


def write_kubeconfig(file: Path, contexts: Mapping[str, Target]) -> Path:
    """A kubeconfig whose contexts are namespaces of targets; the first is the current one."""
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(contexts))}
    document |= {"clusters": [], "users": [], "contexts": []}
    for name, target in contexts.items():
        cluster, user = target.access()
        document["clusters"].append({"name": name, "cluster": cluster})
        document["users"].append({"name": name, "user": user})
        context = {"cluster": name, "user": name, "namespace": target.cluster.namespace}
        document["contexts"].append({"name": name, "context": context})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def define(target: Target, definition: Any) -> None:
    """Make the cluster know a custom resource."""
    if target.real is not None:
        target.real.define(definition)
    elif target.server is not None:
        (version,) = definition["spec"]["versions"]
        target.server.api.schemas[definition["spec"]["names"]["plural"]] = version["schema"]["openAPIV3Schema"]
