"""Rolls a plan back in several clusters."""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_k8s.cluster.checks.preflight import check_manifests
from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import object_key
from jellybean_k8s.cluster.deploy import rollback_target
from jellybean_k8s.cluster.named_clusters import check_target
from jellybean_k8s.cluster.phases import DeployResult
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import Inventory, Revision, read_revision
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.cluster.several.checks import (
    CheckedPart,
    check_part,
    check_parts,
    check_places,
    leave_out_offline,
    supported_objects,
)
from jellybean_k8s.cluster.several.common_rollout import CommonRollout
from jellybean_k8s.cluster.several.member import Member
from jellybean_k8s.cluster.several.members import Members
from jellybean_k8s.errors import DeployError, NotDeployedError


def rollback_parts(
    clusters: Mapping[str, Cluster],
    app: str,
    number: int | None = None,
    options: DeployOptions | None = None,
    *,
    skip_offline: bool = False,
) -> Mapping[str, DeployResult]:
    """Serve an earlier revision again in all clusters; the first is the gateway's, which chooses it, as `rollback`.

    The others return to their newest revision of the same plan; those where the revision had no objects are emptied.
    DeployError, before a change, if one lacks it, or if it also ran in a cluster that is not among these.
    `skip_offline`: clusters that are away at the start, except the gateway's, are left out, which is told; rolling back
    to the new revision brings them up to date.
    """
    options, named = options or DeployOptions(), tuple(clusters)

    def command(to: int | None) -> str:
        return f"`jellybean rollback{'' if to is None else f' --revision {to}'}`"

    def choose(inventories: Mapping[str, Inventory]) -> tuple[Revision, dict[str, Revision | None]]:
        gateway = inventories[named[0]]
        if not gateway.exists:
            raise NotDeployedError(f"nothing of {app} is deployed in {named[0]}, the gateway's cluster")
        check_places(inventories, named, named[0], in_place=options.in_place)
        target = rollback_target(gateway, number)
        check_target(target, named)
        return target, _revisions(inventories, target)

    with Members(clusters, app, options) as members:
        waiting = f"nothing was applied; run {command(number)} again when it is back"
        left_out = leave_out_offline(members) if skip_offline else ()
        choose(members.read_inventories(waiting))  # before a lock is created
        members.acquire_locks(waiting)
        inventories = members.read_inventories(waiting)
        target, chosen = choose(inventories)
        used = target.clusters or named[:1]  # that of the gateway had no name while it was the only one

        def check_one(member: Member) -> CheckedPart:
            content = _content(member, app, chosen[member.name], target, used)
            return check_part(
                member,
                inventories[member.name],
                content,
                lambda found, leaving: check_manifests(member.cluster, app, found, leaving=leaving, now=options.now),
            )

        contents = check_parts(members, check_one, waiting)
        rollout = CommonRollout(members, contents, lambda new: command(target.number if new is None else new))
        results = rollout.run()
        serving = results[members.gateway.name].number or target.number
        for name in left_out:
            members.say(f"run {command(serving)} when {name} is back: it brings it up to date")
        return results


def _revisions(inventories: Mapping[str, Inventory], target: Revision) -> dict[str, Revision | None]:
    """The revision that each cluster returns to, the gateway's first; None where the target has no objects.

    DeployError if a cluster lacks it.
    """
    gateway, *others = inventories
    found: dict[str, Revision | None] = {gateway: target}
    for name in others:
        same = [revision for revision in inventories[name].revisions if revision.served == target.served]
        if name in target.clusters and not same:
            raise DeployError(
                f"nothing was applied: {name} has no revision of the plan of revision {target.number} of {gateway}: "
                "deploy that plan again"
            )
        found[name] = same[-1] if name in target.clusters else None
    return found


def _content(
    member: Member, app: str, revision: Revision | None, target: Revision, used: tuple[str, ...]
) -> RevisionContent:
    """What a cluster gets of the revision. DeployError if the gateway was in another cluster then."""
    if revision is None:
        return RevisionContent.nothing_of(target, used)
    objects = supported_objects(member.cluster, read_revision(member.cluster, app, revision.number))
    if member.is_gateway and (not objects or object_key(objects[-1]) != ("Service", app)):
        where = target.clusters[0] if target.clusters else "another cluster"
        raise DeployError(
            f"the gateway of revision {target.number} was in {where}: write its gateway.tier into kubernetes.yaml again"
        )
    return RevisionContent.of_revision(revision, objects, used)
