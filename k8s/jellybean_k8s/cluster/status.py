"""Reads the status of a deployment from the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey, by_key
from jellybean_k8s.cluster.drift import Drift, at_rest, find_drift
from jellybean_k8s.cluster.pod_reasons import pod_reasons, set_reasons
from jellybean_k8s.cluster.readiness import WORKLOADS, selector_of, unready
from jellybean_k8s.cluster.revisions import Inventory, Revision, read_inventory, read_revision
from jellybean_k8s.cluster.secrets import secret_names
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import OWN_PREFIX
from jellybean_k8s.objects import KubeObject


@dataclass(frozen=True, slots=True)
class SetStatus:
    """A StatefulSet or Deployment: pods wanted and available; `lacks`: why it is not ready, empty if it is."""

    kind: str
    name: str
    plan: str
    wanted: int
    available: int
    lacks: str


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """Status of a deployment. `serving`: short hash of the plan behind the client Service."""

    app: str
    namespace: str
    serving: str | None
    revisions: tuple[Revision, ...]
    sets: tuple[SetStatus, ...]
    drift: Drift  # from the revision that serves
    reasons: tuple[str, ...]  # why pods are not made, or not ready

    @property
    def is_well(self) -> bool:
        """True if the newest revision serves and is complete."""
        newest = self.revisions[-1]
        return newest.state == "deployed" and not self.drift.keys and not any(found.lacks for found in self.sets)


def read_status(cluster: Cluster, app: str) -> DeploymentStatus:
    """The status of a deployment. DeployError if nothing is deployed."""
    inventory = read_inventory(cluster, app)
    if not inventory.revisions:
        raise DeployError(f"nothing of {app} is deployed in {cluster.namespace}")
    live: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in sorted({kind for kind, _ in inventory.objects} - {"Secret"}):
        live |= by_key(cluster.list(kind, selector_of(app)), kind)
    drift = _drift(cluster, inventory, live)
    sets = tuple(_set(item) for key, item in sorted(live.items()) if key[0] in WORKLOADS)
    reasons: list[str] = []
    if lacking := {(found.kind, found.name) for found in sets if found.lacks}:
        events = cluster.list("Event")
        reasons = set_reasons([item for key, item in sorted(live.items()) if key in lacking], events)
        reasons += pod_reasons(cluster.list("Pod", selector_of(app)), events)
    front = live.get(("Service", app))
    serving = front["spec"]["selector"].get(f"{OWN_PREFIX}/plan") if front is not None else None
    return DeploymentStatus(app, cluster.namespace, serving, inventory.revisions, sets, drift, tuple(reasons))


def _drift(cluster: Cluster, inventory: Inventory, live: Mapping[ObjectKey, KubeObject]) -> Drift:
    """What differs from the revision that serves. Secrets are read one by one: that needs no right to list them."""
    serving = at_rest(inventory)
    if serving is None:
        return Drift()
    manifests = read_revision(cluster, inventory.app, serving.number)
    mounted = sorted({("Secret", name) for name in secret_names(manifests)} & inventory.objects)
    secrets = {key: item for key in mounted if (item := cluster.get(*key)) is not None}
    return find_drift(manifests, {**live, **secrets}, inventory)


def _set(item: dict[str, Any]) -> SetStatus:
    wanted = item["spec"].get("replicas", 1)
    available = (item.get("status") or {}).get("availableReplicas", 0)
    plan = item["metadata"]["labels"].get(f"{OWN_PREFIX}/plan", "")
    return SetStatus(item["kind"], item["metadata"]["name"], plan, wanted, available, unready(item))
