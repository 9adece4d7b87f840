"""Reads the status of a deployment from the cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jellybean_k8s.cluster.certificates.expiry import mounted_certificates
from jellybean_k8s.cluster.certificates.report import CertificateReport, report_certificates
from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey, by_key
from jellybean_k8s.cluster.drift import Drift, at_rest, find_drift
from jellybean_k8s.cluster.named_clusters import forgotten_beside, forgotten_lines
from jellybean_k8s.cluster.pod_reasons import pod_reasons, set_reasons
from jellybean_k8s.cluster.readiness import WORKLOADS, selector_of, unready
from jellybean_k8s.cluster.revisions import (
    DEPLOYED,
    Inventory,
    Revision,
    read_inventory,
    read_revision,
)
from jellybean_k8s.cluster.secrets import read_secrets, secret_names
from jellybean_k8s.errors import NotDeployedError
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
    """Status of a deployment. `serving`: short hash of the plan behind the client Service.

    In a cluster without the client Service, whose plan has its gateway in another, it is that of the current revision.
    `problems`: clusters with objects that kubernetes.yaml does not name, if this is the only one.
    """

    app: str
    namespace: str
    serving: str | None
    revisions: tuple[Revision, ...]
    sets: tuple[SetStatus, ...]
    drift: Drift  # from the revision that serves
    reasons: tuple[str, ...]  # why pods are not made, or not ready
    certificates: CertificateReport  # of the revision that serves
    problems: tuple[str, ...] = ()

    @property
    def current(self) -> Revision | None:
        """The revision that serves."""
        return next((found for found in reversed(self.revisions) if found.state == DEPLOYED), None)

    @property
    def is_well(self) -> bool:
        """True if the newest revision serves and is complete, and no certificate of its pods has expired."""
        newest, problems = self.revisions[-1], (*self.problems, *self.drift.keys, *self.certificates.problems)
        return newest.state == DEPLOYED and not problems and not any(found.lacks for found in self.sets)


def read_status(
    cluster: Cluster, app: str, *, now_unix_s: float | None = None, is_only: bool = True
) -> DeploymentStatus:
    """The status of a deployment; `is_only`: in its only cluster. DeployError if nothing is deployed."""
    inventory = read_inventory(cluster, app)
    if not inventory.revisions:
        raise NotDeployedError(f"nothing of {app} is deployed in {cluster.namespace}")
    live: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in sorted({kind for kind, _ in inventory.objects} - {"Secret"}):
        live |= by_key(cluster.list(kind, selector_of(app)), kind)
    at_unix_s = time.time() if now_unix_s is None else now_unix_s
    drift, certificates = _of_serving_revision(cluster, inventory, live, at_unix_s)
    sets = tuple(_set(item) for key, item in sorted(live.items()) if key[0] in WORKLOADS)
    reasons: list[str] = []
    if lacking := {(found.kind, found.name) for found in sets if found.lacks}:
        events = cluster.list("Event")
        reasons = set_reasons([item for key, item in sorted(live.items()) if key in lacking], events)
        pods = cluster.list("Pod", selector_of(app))
        reasons += pod_reasons(pods, events, certificates.pod_reasons(pods))
    serving = _serving(inventory, live)
    problems = forgotten_lines(forgotten_beside(inventory)) if is_only else []
    return DeploymentStatus(
        app,
        cluster.namespace,
        serving,
        inventory.revisions,
        sets,
        drift,
        tuple(reasons),
        certificates,
        tuple(problems),
    )


def _serving(inventory: Inventory, live: Mapping[ObjectKey, KubeObject]) -> str | None:
    """Short hash of the plan that serves; None where there is none, or its client Service is missing."""
    key = ("Service", inventory.app)
    if key in inventory.objects:
        return live[key]["spec"]["selector"].get(f"{OWN_PREFIX}/plan") if key in live else None
    return inventory.current.served if inventory.current is not None else None


def _of_serving_revision(
    cluster: Cluster, inventory: Inventory, live: Mapping[ObjectKey, KubeObject], at_unix_s: float
) -> tuple[Drift, CertificateReport]:
    """What differs from the revision that serves, and its certificates; of Secrets that may not be read neither.

    While another revision is being deployed nothing is compared, and the certificates are of the one that still serves.
    """
    if inventory.current is None:
        return Drift(), CertificateReport(at_unix_s)
    manifests = read_revision(cluster, inventory.app, inventory.current.number)
    names = {*secret_names(manifests), *mounted_certificates(manifests)}
    secrets, unread = read_secrets(cluster, names)
    certificates = report_certificates(manifests, secrets, at_unix_s, unread, is_operated=inventory.owner is not None)
    if at_rest(inventory) is None:
        return Drift(), certificates
    known = replace(inventory, objects=inventory.objects - {("Secret", name) for name in unread})
    own = {("Secret", name): item for name, item in secrets.items() if ("Secret", name) in inventory.objects}
    return find_drift(manifests, {**live, **own}, known), certificates


def _set(item: dict[str, Any]) -> SetStatus:
    wanted = item["spec"].get("replicas", 1)
    available = (item.get("status") or {}).get("availableReplicas", 0)
    plan = item["metadata"]["labels"].get(f"{OWN_PREFIX}/plan", "")
    return SetStatus(item["kind"], item["metadata"]["name"], plan, wanted, available, unready(item))
