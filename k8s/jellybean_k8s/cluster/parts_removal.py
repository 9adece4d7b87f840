"""Removes a deployment from several clusters."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey
from jellybean_k8s.cluster.member import Member, StepResults
from jellybean_k8s.cluster.members import Members
from jellybean_k8s.cluster.removal import Removal
from jellybean_k8s.cluster.revisions import NotDeployedError, read_inventory
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.errors import DeployError

_STAYS = "what is deployed there stays; run `jellybean undeploy` again when it is back"
Deleted = tuple[ObjectKey, ...]


def undeploy_parts(
    clusters: Mapping[str, Cluster], app: str, options: DeployOptions | None = None
) -> Mapping[str, Deleted]:
    """Delete the deployment in all clusters, the first, the gateway's, first; returns what was deleted, by cluster.

    One that is away is left as it is: the others' objects are deleted, then UnreachableError tells so. One where
    nothing is deployed is passed over. NotDeployedError if that holds for all.
    """
    with Members(clusters, app, options or DeployOptions()) as members:
        found = members.run(lambda member: read_inventory(member.cluster, app), patient=False)
        found.raise_stop()
        deployed = [name for name, inventory in found.results.items() if inventory.exists]
        if found.errors or not deployed:
            found.require(_STAYS)
            raise NotDeployedError(f"nothing of {app} is deployed in {', '.join(clusters)}")
        members.leave_out([name for name in clusters if name not in deployed])
        removed = _remove(members)
        left = StepResults(removed.results, {**found.away, **removed.away}, removed.errors)
        return left.require(_STAYS)


def _remove(members: Members) -> StepResults[Deleted]:
    members.acquire_locks(_STAYS)
    inventories = members.read_inventories(_STAYS)
    removals = {
        member.name: Removal(members.rollout(member, inventories[member.name]), member.is_gateway) for member in members
    }
    gateway = [member for member in members if member.is_gateway]
    emptied = members.run(lambda member: removals[member.name].remove_gateway(), gateway)
    emptied.raise_stop()
    if emptied.errors:
        raise DeployError("\n".join(emptied.lines))

    def remove(member: Member) -> Deleted:
        deleted = removals[member.name].remove_rest()
        member.holds_lock = False  # its Lease was deleted, too
        return deleted

    return members.run(remove)
