"""What differs in the cluster from the manifests of the revision that serves, and its repair.

A revision's manifests have no Secrets: those that are missing are told, and brought again by a deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import APPLIED, ObjectKey, difference, is_ours, listed, object_key
from jellybean_k8s.cluster.lock import DeployLock
from jellybean_k8s.cluster.revisions import APPLYING, Inventory, Revision, read_inventory, read_revision
from jellybean_k8s.cluster.rollout import DeployOptions, Rollout, wanted_objects
from jellybean_k8s.cluster.secrets import secret_names
from jellybean_k8s.objects import KubeObject


@dataclass(frozen=True, slots=True)
class Drift:
    """Objects that do not exist, and those that others changed: with the field and its two values."""

    missing: tuple[ObjectKey, ...] = ()
    changed: tuple[tuple[ObjectKey, str], ...] = ()

    @property
    def keys(self) -> frozenset[ObjectKey]:
        """All objects that differ."""
        return frozenset((*self.missing, *(key for key, _ in self.changed)))

    @property
    def words(self) -> tuple[str, ...]:
        """A line for each object that differs."""
        gone = (f"{'/'.join(key)} is missing" for key in self.missing)
        return (*gone, *(f"{'/'.join(key)} was changed: {what}" for key, what in self.changed))


def find_drift(manifests: tuple[KubeObject, ...], live: Mapping[ObjectKey, Any], inventory: Inventory) -> Drift:
    """Compare manifests and the Secrets that their pods mount with objects of a cluster. Pure."""
    ours = {key: item for key, item in live.items() if is_ours(item, inventory.app)}
    mounted = {("Secret", name) for name in secret_names(manifests)} & inventory.objects
    missing = [key for key in (*map(object_key, manifests), *sorted(mounted)) if key not in ours]
    changed = []
    for item in wanted_objects(manifests, live, inventory.app):
        key = object_key(item)
        if key in ours and (what := difference(ours[key], _without_mark(item))) is not None:
            changed.append((key, what))
    return Drift(tuple(missing), tuple(changed))


def heal(cluster: Cluster, app: str, options: DeployOptions | None = None) -> tuple[ObjectKey, ...]:
    """Apply again what differs from the revision that serves, whoever changed it; returns what was applied.

    A scaled set gets its pods back, a deleted object is created. LockedError while a deployment runs.
    """
    options = options or DeployOptions(force=True)
    with DeployLock(cluster, app, wait_s=0.0, now=options.now, say=options.say) as lock:
        inventory = read_inventory(cluster, app)
        serving = at_rest(inventory)
        if serving is None:
            return ()
        manifests = read_revision(cluster, app, serving.number)
        rollout = Rollout(cluster, app, lock, options, inventory)
        live = rollout.live(manifests)
        drift = find_drift(manifests, live, inventory)
        rollout.apply(wanted_objects(manifests, live, app), drift.keys, frozenset(drift.missing))
        return tuple(rollout.applied)


def at_rest(inventory: Inventory) -> Revision | None:
    """The revision that serves, to which the cluster is compared; None while another is being deployed."""
    return None if inventory.revisions and inventory.revisions[-1].state == APPLYING else inventory.current


def _without_mark(item: KubeObject) -> dict[str, Any]:
    """The object without the annotation of its hash, which says nothing to people."""
    meta = item["metadata"]
    annotations = {key: value for key, value in meta.get("annotations", {}).items() if key != APPLIED}
    return listed(item) | {"metadata": {**meta, "annotations": annotations}}
