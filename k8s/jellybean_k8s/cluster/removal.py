"""Removes a deployment from a cluster, in phases that may each be interrupted and repeated."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_k8s.cluster.compare import ObjectKey
from jellybean_k8s.cluster.readiness import await_gone, selector_of
from jellybean_k8s.cluster.revisions import revision_name
from jellybean_k8s.cluster.rollout import Rollout
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.relay_names import is_relay
from jellybean_k8s.names import APP_PREFIX


@dataclass
class Removal:
    """The removal of a deployment, under its lock."""

    rollout: Rollout

    def remove_gateway(self) -> None:
        """Delete the gateway, and wait until it has answered the requests in flight, through its relay too."""
        rollout = self.rollout
        rollout.prune(self._gateway)
        if rollout.options.wait:
            selector = f"{selector_of(rollout.app)},{APP_PREFIX}/component=gateway"
            await_gone(rollout.cluster, selector, rollout.wait_s, rollout.pulse)

    def remove_rest(self) -> None:
        """Delete all other objects but the lock, the records last."""
        rollout, inventory, app = self.rollout, self.rollout.inventory, self.rollout.app
        rollout.prune(inventory.objects - self._gateway)
        if rollout.options.wait and (
            left := await_gone(rollout.cluster, selector_of(app), rollout.wait_s, rollout.pulse)
        ):
            waited_s = rollout.options.timeout_s
            raise DeployError(f"{left} pods of {app} are still there after {waited_s:g} s; run it again")
        rollout.prune(("ConfigMap", revision_name(app, revision.number)) for revision in inventory.revisions)
        rollout.prune([("ConfigMap", inventory.name)])

    def delete_lock(self) -> tuple[ObjectKey, ...]:
        """Delete the lock, once nothing else is left; returns everything that was deleted."""
        if self.rollout.lock.delete():
            self.rollout.pruned.append(("Lease", self.rollout.lock.name))
        return tuple(self.rollout.pruned)

    @property
    def _gateway(self) -> frozenset[ObjectKey]:
        """The gateway, and the Services by which clients and agents find pods; empty where there is no gateway."""
        inventory = self.rollout.inventory
        if not inventory.has_client_service:
            return frozenset()
        kinds = ("Deployment", "Service")
        return frozenset(key for key in inventory.objects if key[0] in kinds and not is_relay(inventory.app, key[1]))
