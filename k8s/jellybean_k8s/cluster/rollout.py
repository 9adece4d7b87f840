"""Applies and prunes objects of one deployment, under its lock."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey, by_key, is_ours, object_key, with_hash
from jellybean_k8s.cluster.lock import DeployLock
from jellybean_k8s.cluster.readiness import STUCK_S
from jellybean_k8s.cluster.revisions import Inventory, write_inventory
from jellybean_k8s.cluster.secrets import with_kept_keys
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.relay_names import is_relay
from jellybean_k8s.objects import KubeObject

Say = Callable[[str], None]
Progress = Callable[[float, float, str], None]
_PRUNE_ORDER = {"Service": 0, "Deployment": 1, "StatefulSet": 2}  # the relay's Services and all other kinds follow


class DeployStoppedError(DeployError):
    """The deployment was told to stop; `progress` may raise it. The next run continues."""


@dataclass(frozen=True)
class DeployOptions:
    """How to deploy.

    `wait`: switch clients to the new plan only when it is ready, else immediately. `undo_failed`: undo a deployment
    that did not become ready. `in_place`: remove the running plan first. `owner`: owner reference set on all objects,
    to the custom resource that is deployed. `stuck_s`: as of `await_ready`.
    """

    wait: bool = True
    timeout_s: float = 600.0
    stuck_s: float = STUCK_S
    force: bool = False
    undo_failed: bool = False
    in_place: bool = False
    owner: Mapping[str, Any] | None = None
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    say: Say = lambda text: None
    progress: Progress = lambda done, total, label: None


@dataclass
class Rollout:
    """A deployment in progress, under the lock.

    `interrupt` is called before every change, and while waiting; it raises to stop. `until_s`: when all waiting ends,
    by the cluster's clock; None: each wait takes at most the options' `timeout_s`.
    """

    cluster: Cluster
    app: str
    lock: DeployLock
    options: DeployOptions
    inventory: Inventory
    applied: list[ObjectKey] = field(default_factory=list)
    pruned: list[ObjectKey] = field(default_factory=list)
    interrupt: Callable[[], None] = lambda: None
    until_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Longest seconds to wait from now."""
        if self.until_s is None:
            return self.options.timeout_s
        return max(0.0, round(self.until_s - self.cluster.clock(), 1))

    def pulse(self) -> None:
        """Renew the lock, unless the deployment is to stop."""
        self.interrupt()
        self.lock.renew()

    def live(self, wanted: Iterable[KubeObject]) -> dict[ObjectKey, KubeObject]:
        """Objects in the cluster under the names of the inventory and of `wanted`, whoever created them."""
        keys = self.inventory.objects | {object_key(item) for item in wanted}
        existing: dict[ObjectKey, KubeObject] = {}
        for kind in sorted({kind for kind, _ in keys} - {"Secret"}):
            existing |= by_key(self.cluster.list(kind), kind)
        for kind, name in keys:
            if kind == "Secret" and (there := self.cluster.get(kind, name)) is not None:  # needs no right to list them
                existing[kind, name] = there
        return {key: item for key, item in existing.items() if key in keys}

    def remember(self, inventory: Inventory) -> None:
        self.inventory = inventory
        write_inventory(self.cluster, inventory)

    def apply(self, objects: Iterable[KubeObject], wanted: frozenset[ObjectKey], new: frozenset[ObjectKey]) -> None:
        """Apply the objects in `wanted`. New autoscaled sets start with all of their workers."""
        scaled = {}
        objects = tuple(objects)
        for item in objects:
            if item["kind"] == "HorizontalPodAutoscaler":
                scaled[item["spec"]["scaleTargetRef"]["name"]] = item["spec"]["maxReplicas"]
        for done, item in enumerate(objects):
            key = object_key(item)
            if key not in wanted:
                continue
            self.pulse()
            self.cluster.apply(item, force=self.options.force)
            if key in new and key[0] == "StatefulSet" and key[1] in scaled:
                self.cluster.merge(*key, {"spec": {"replicas": scaled[key[1]]}}, "scale")
            self.applied.append(key)
            self.options.progress(done + 1, len(objects), "/".join(key))

    def prune(self, keys: Iterable[ObjectKey]) -> None:
        """Delete the objects under `keys` that belong to this deployment; others with these names are kept."""
        for key in sorted(keys, key=self._prune_order):
            self.pulse()
            there = self.cluster.get(*key)
            if there is not None and is_ours(there, self.app):
                if self.cluster.delete(*key, there["metadata"]["uid"]):
                    self.pruned.append(key)
            elif there is not None:
                self.options.say(f"{'/'.join(key)} does not belong to this deployment any more: it is kept")

    def _prune_order(self, key: ObjectKey) -> tuple[int, ObjectKey]:
        """Order of deletion. A relay's Services follow the sets, whose pods answer through it while they leave."""
        kind, name = key
        follows = kind == "Service" and is_relay(self.app, name)
        return len(_PRUNE_ORDER) if follows else _PRUNE_ORDER.get(kind, len(_PRUNE_ORDER)), key


def wanted_objects(objects: Sequence[KubeObject], live: Mapping[ObjectKey, KubeObject], app: str) -> list[KubeObject]:
    """The objects as they are applied, given those in the cluster."""
    return [with_hash(item) for item in with_kept_keys(objects, live, app)]
