"""Removes a deployment from a cluster, in two phases that may each be interrupted and repeated."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_k8s.cluster.compare import ObjectKey
from jellybean_k8s.cluster.readiness import await_gone, selector_of
from jellybean_k8s.cluster.revisions import revision_name
from jellybean_k8s.cluster.rollout import Rollout
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP_PREFIX


@dataclass
class Removal:
    """The removal of a deployment, under its lock. `has_gateway`: the gateway is in this cluster."""

    rollout: Rollout
    has_gateway: bool = True

    def remove_gateway(self) -> None:
        """Delete the gateway, and wait until it has answered the requests in flight."""
        rollout = self.rollout
        rollout.prune(self._gateway)
        if rollout.options.wait:
            selector = f"{selector_of(rollout.app)},{APP_PREFIX}/component=gateway"
            await_gone(rollout.cluster, selector, rollout.wait_s, rollout.pulse)

    def remove_rest(self) -> tuple[ObjectKey, ...]:
        """Delete all other objects, the records last; returns everything that was deleted."""
        rollout, inventory, app = self.rollout, self.rollout.inventory, self.rollout.app
        rollout.prune(inventory.objects - self._gateway)
        wait_s = rollout.wait_s
        if rollout.options.wait and (left := await_gone(rollout.cluster, selector_of(app), wait_s, rollout.pulse)):
            raise DeployError(f"{left} pods of {app} are still there after {wait_s:g} s; run it again")
        rollout.prune(("ConfigMap", revision_name(app, revision.number)) for revision in inventory.revisions)
        rollout.prune([("ConfigMap", inventory.name), ("Lease", rollout.lock.name)])
        return tuple(rollout.pruned)

    @property
    def _gateway(self) -> frozenset[ObjectKey]:
        """The gateway, and the Services by which clients and agents find pods; empty where there is no gateway."""
        if not self.has_gateway:
            return frozenset()
        return frozenset(key for key in self.rollout.inventory.objects if key[0] in ("Deployment", "Service"))
