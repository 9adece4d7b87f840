"""Removes a deployment from several clusters."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey
from jellybean_k8s.cluster.named_clusters import check_forgotten, forgotten_clusters
from jellybean_k8s.cluster.removal import Removal
from jellybean_k8s.cluster.revisions import read_inventory
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.cluster.several.member import Member, StepResults
from jellybean_k8s.cluster.several.members import Members
from jellybean_k8s.errors import DeployError, NotDeployedError

_STAYS = "what is deployed there stays; run `jellybean undeploy` again when it is back"
Deleted = tuple[ObjectKey, ...]


def undeploy_parts(
    clusters: Mapping[str, Cluster], app: str, options: DeployOptions | None = None
) -> Mapping[str, Deleted]:
    """Delete the deployment in all clusters, the first, the gateway's, first; returns what was deleted, by cluster.

    One that is away is left as it is: the others' objects are deleted, then UnreachableError tells so. One where
    nothing is deployed is passed over. NotDeployedError if that holds for all; DeployError, before a change, if a
    cluster that is not among these has objects, too.
    """
    with Members(clusters, app, options or DeployOptions()) as members:
        found = members.run(lambda member: read_inventory(member.cluster, app), patient=False)
        found.raise_stop()
        records = (inventory.revisions for inventory in found.results.values())
        check_forgotten(forgotten_clusters(records, clusters), undeploys=True)
        deployed = [name for name, inventory in found.results.items() if inventory.exists]
        if found.errors or not deployed:
            found.require(_STAYS)
            raise NotDeployedError(f"nothing of {app} is deployed in {', '.join(clusters)}")
        members.leave_out([name for name in clusters if name not in deployed])
        removed = _remove(members)
        left = StepResults(removed.results, {**found.away, **removed.away}, removed.errors)
        for name, deleted in left.results.items() if not left.is_complete else ():
            members.say(f"{name}: {len(deleted)} objects deleted")
        return left.require(_STAYS)


def _remove(members: Members) -> StepResults[Deleted]:
    members.acquire_locks(_STAYS)
    inventories = members.read_inventories(_STAYS)
    removals = {member.name: Removal(members.rollout(member, inventories[member.name])) for member in members}
    gateway = [member for member in members if inventories[member.name].has_client_service]
    emptied = members.run(lambda member: removals[member.name].remove_gateway(), gateway)
    emptied.raise_stop()
    if emptied.errors:
        raise DeployError("\n".join(emptied.lines))

    removed = members.run(lambda member: removals[member.name].remove_rest())
    removed.raise_stop()

    def delete_lock(member: Member) -> Deleted:
        member.holds_lock = False  # nobody renews it any more: it may be gone though the answer was lost
        return removals[member.name].delete_lock()

    unlocked = members.run(delete_lock, [member for member in members if member.name in removed.results])
    return StepResults(unlocked.results, {**removed.away, **unlocked.away}, {**removed.errors, **unlocked.errors})
