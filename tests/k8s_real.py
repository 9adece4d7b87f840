"""A real API server for tests: the cluster that JELLYBEAN_TEST_KUBECONFIG names, which nothing else uses meanwhile.

Its user is an administrator, and no kubelet is needed. Each test gets a namespace. Nodes are made here, stay ready and
run nothing; other nodes lose the label of their tier until the tests end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from jellybean_k8s import CRD_KIND, TIER_LABEL, Cluster, ClusterError, DeployError, connect

REAL = os.environ.get("JELLYBEAN_TEST_KUBECONFIG")
_DEFINITION = "CustomResourceDefinition"
_TEST_LABEL = "jellybean.dev/test"  # of what tests made that belongs to no namespace, and of their namespaces
_TIER_BEFORE = "jellybean.dev/test-tier"  # of nodes that are not the tests': the tier that they get back
_HEARTBEAT_S = 5.0  # a node is unreachable after 40 s without
_WAIT_S = 120.0
_WORKLOADS = ("statefulsets", "deployments", "replicasets")
_NAMESPACES = "/api/v1/namespaces"
_MERGE = "application/merge-patch+json"


def node(name: str, tier: str, gpus: int = 0, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "uid": name, "labels": {TIER_LABEL: tier, **labels}}
    resources = {"cpu": "8", "memory": "8Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": resources}}


NODES = {
    item["metadata"]["name"]: item for item in (node("box-a", "edge"), node("box-b", "edge"), node("big", "cloud", 2))
}


def poll(value: Callable[[], Any], what: str, *, within_s: float = _WAIT_S, pause_s: float = 0.1) -> Any:
    """The first true value."""
    until = time.monotonic() + within_s
    while not (result := value()):
        assert time.monotonic() < until, f"{what}: nothing after {within_s:g} s"
        time.sleep(pause_s)
    return result


class RealCluster:
    """The cluster of a kubeconfig, with the nodes of the tests while it is entered."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._admin = connect(kubeconfig, None, "default")
        self._nodes: dict[str, Any] = {}
        self._nodes_lock = threading.Lock()
        self._definitions: dict[str, Any] = {}  # by name, as they are served
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> RealCluster:
        self._remove_leftovers()
        for item in self._admin.list("Node"):
            if tier := (item["metadata"].get("labels") or {}).get(TIER_LABEL):
                self._label(item, {TIER_LABEL: None, _TIER_BEFORE: tier})
        self.restore_nodes()
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._heart.join()
        self._remove_leftovers()
        for item in self._admin.list("Node", _TIER_BEFORE):
            self._label(item, {TIER_LABEL: item["metadata"]["labels"][_TIER_BEFORE], _TIER_BEFORE: None})

    def connect(self, namespace: str) -> Cluster:
        """A client whose host a test may change: it does not read the kubeconfig again with every request."""
        cluster = connect(self.kubeconfig, None, namespace)
        cluster.api.configuration.refresh_api_key_hook = None
        return cluster

    def access(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The API server and the user of the kubeconfig's current context."""
        document = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        parts = {key: {item["name"]: item for item in document[key]} for key in ("contexts", "clusters", "users")}
        context = parts["contexts"][document["current-context"]]["context"]
        return parts["clusters"][context["cluster"]]["cluster"], parts["users"][context["user"]]["user"]

    # -- namespaces -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """A new namespace; when it ends, none of its pods is left, and the rest of it goes."""
        name = f"jellybean-test-{uuid.uuid4().hex[:8]}"
        self._admin._call("post", _NAMESPACES, body={"metadata": {"name": name, "labels": {_TEST_LABEL: "namespace"}}})
        account = f"{_NAMESPACES}/{name}/serviceaccounts/default"  # pods without one are refused
        poll(lambda: self._exists(account), f"{name}: ServiceAccount default")
        try:
            yield name
        finally:
            self._empty(name)

    def restrict(self, name: str) -> None:
        """A namespace that admits pods of the restricted profile alone."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self._admin._call("patch", f"{_NAMESPACES}/{name}", body={"metadata": {"labels": labels}}, content_type=_MERGE)

    def _empty(self, name: str) -> None:
        cluster = self.connect(name)
        for item in cluster.list(CRD_KIND):
            if item["metadata"].get("finalizers"):  # its operator is gone
                cluster.merge(CRD_KIND, item["metadata"]["name"], {"metadata": {"finalizers": None}})
        poll(lambda: self._is_empty(cluster), f"{name}: the end of its pods")
        with contextlib.suppress(ClusterError):  # another has deleted it
            self._admin._call("delete", f"{_NAMESPACES}/{name}")

    @staticmethod
    def _is_empty(cluster: Cluster) -> bool:
        """Delete workloads and pods; True if there are none. Pods leave at once, as no kubelet ends them."""
        is_empty = True
        places = [f"/apis/apps/v1/namespaces/{cluster.namespace}/{plural}" for plural in _WORKLOADS]
        for place in (*places, f"{_NAMESPACES}/{cluster.namespace}/pods"):
            if cluster._call("get", place)["items"]:
                is_empty = False
                body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
                cluster._call("delete", place, body=body | {"propagationPolicy": "Background"})
        return is_empty

    # -- nodes ------------------------------------------------------------------------------------------------------

    def set_node(self, item: Any) -> None:
        """Make a node, or give it these labels and this spec and size."""
        name, meta = item["metadata"]["name"], item["metadata"]
        labels = {**meta["labels"], _TEST_LABEL: "node"}
        with self._nodes_lock:
            if self._admin.get("Node", name) is None:
                self._admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
            self._admin.merge(
                "Node", name, {"metadata": {"labels": labels}, "spec": {"unschedulable": None} | item["spec"]}
            )
            self._nodes[name] = item
            self._report(name)

    def remove_node(self, name: str) -> None:
        with self._nodes_lock:
            self._nodes.pop(name, None)
            self._admin._call("delete", f"/api/v1/nodes/{name}")

    def restore_nodes(self) -> None:
        """The nodes of every test: `NODES`."""
        for name in [name for name in self._nodes if name not in NODES]:
            self.remove_node(name)
        for name, item in NODES.items():
            if self._nodes.get(name) is not item:
                self.set_node(item)

    def nodes(self) -> list[Any]:
        return self._admin.list("Node", f"{_TEST_LABEL}=node")

    def _report(self, name: str) -> None:
        """What a kubelet says of its node."""
        size = {"nvidia.com/gpu": None, "pods": "110", **self._nodes[name]["status"]["allocatable"]}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        ready["lastHeartbeatTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._admin.merge(
            "Node", name, {"status": {"capacity": size, "allocatable": size, "conditions": [ready]}}, "status"
        )

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT_S):
            with self._nodes_lock, contextlib.suppress(DeployError):  # the next one follows
                for name in self._nodes:
                    self._report(name)

    # -- definitions ------------------------------------------------------------------------------------------------

    def define(self, definition: Any) -> None:
        """Define a custom resource, and wait until it and its schema are served."""
        name = definition["metadata"]["name"]
        if self._definitions.get(name) == definition:
            return
        labels = {**definition["metadata"].get("labels", {}), _TEST_LABEL: "definition"}
        self._admin.apply({**definition, "metadata": {**definition["metadata"], "labels": labels}}, force=True)
        group, (version,) = definition["spec"]["group"], definition["spec"]["versions"]
        place = f"apis/{group}/{version['name']}"
        poll(lambda: self._is_established(name), f"{name}: Established")
        poll(lambda: self._exists(f"/{place}/{definition['spec']['names']['plural']}"), f"{name}: its objects")
        wanted = version["schema"]["openAPIV3Schema"].get("properties", {})
        poll(lambda: self._publishes(place, definition["spec"]["names"]["kind"], set(wanted)), f"{name}: its schema")
        self._definitions[name] = definition

    def undefine(self, name: str) -> None:
        """Remove a definition, and wait until nothing of it is served."""
        self._definitions.pop(name, None)
        there = self._admin.get(_DEFINITION, name)
        if there is not None:
            self._admin.delete(_DEFINITION, name, there["metadata"]["uid"])
            poll(lambda: self._admin.get(_DEFINITION, name) is None, f"{name}: its end")
            group, version = there["spec"]["group"], there["spec"]["versions"][0]["name"]
            poll(lambda: not self._exists(f"/apis/{group}/{version}"), f"{name}: the end of its group")

    def _is_established(self, name: str) -> bool:
        there = self._admin.get(_DEFINITION, name) or {}
        conditions = (there.get("status") or {}).get("conditions") or ()
        return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)

    def _publishes(self, place: str, kind: str, wanted: set[str]) -> bool:
        """True if the schema by which kubectl validates has these properties."""
        published = self._admin._call("get", "/openapi/v3")["paths"].get(place)
        if published is None:
            return False
        schemas = self._admin._call("get", published["serverRelativeURL"])["components"]["schemas"]
        schemas = [schema for name, schema in schemas.items() if name.endswith(f".{kind}")]
        return any(wanted <= set((schema.get("SchemaProps") or schema).get("properties", ())) for schema in schemas)

    # -- what an earlier run has left -------------------------------------------------------------------------------

    def _remove_leftovers(self) -> None:
        namespaces = self._labelled(_NAMESPACES)
        for item in namespaces:
            self._empty(item["metadata"]["name"])
        poll(lambda: not self._labelled(_NAMESPACES), "the end of the tests' namespaces")
        for item in self._admin.list(_DEFINITION, _TEST_LABEL):
            self.undefine(item["metadata"]["name"])
        for item in self.nodes():
            self.remove_node(item["metadata"]["name"])

    def _labelled(self, place: str) -> list[Any]:
        return list(self._admin._call("get", place, label_selector=_TEST_LABEL)["items"])

    def _label(self, item: Any, labels: dict[str, str | None]) -> None:
        self._admin.merge("Node", item["metadata"]["name"], {"metadata": {"labels": labels}})

    def _exists(self, place: str) -> bool:
        try:
            self._admin._call("get", place)
        except ClusterError as error:
            if error.status != 404:
                raise
            return False
        return True
