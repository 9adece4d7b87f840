"""Deploys a plan over several clusters, and rolls it back.

All clusters' objects have the plan's hash in their names; the gateway and the Service of the clients are in one
cluster, the first. A revision has the same number in all clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.common_rollout import CommonRollout
from jellybean_k8s.cluster.deploy import rollback_target
from jellybean_k8s.cluster.member import Member, StepResults
from jellybean_k8s.cluster.members import Members
from jellybean_k8s.cluster.phases import DeployResult, leaving_sets
from jellybean_k8s.cluster.preflight import PreflightError, check, check_manifests
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import (
    Inventory,
    NotDeployedError,
    Revision,
    check_owner,
    read_inventory,
    read_revision,
)
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.objects import KubeObject


@dataclass(frozen=True)
class ClusterPart:
    """What of a plan is deployed to one cluster. `name`: of the cluster in messages."""

    name: str
    cluster: Cluster
    deployed: DeployedPlan
    objects: Sequence[KubeObject]  # with Secrets of certificates; the first part's last one is the clients' Service


def deploy_parts(
    parts: Sequence[ClusterPart], options: DeployOptions | None = None, *, skip_offline: bool = False
) -> Mapping[str, DeployResult]:
    """Make all clusters serve the plan; the first is the gateway's. Returns the results by cluster.

    A cluster that is away is waited for until the deadline, `timeout_s` from now (UnreachableError). `skip_offline`:
    one that is away at the start, except the gateway's, is left out; the next run brings it up to date. Errors as of
    `deploy`; PartlyDeployedError if clients were switched and a cluster could not be finished.
    """
    options, by_name = options or DeployOptions(), {part.name: part for part in parts}
    if options.owner is not None:
        raise DeployError("objects in several clusters cannot be owned by a resource of one: a fault of JellyBean")
    _check_distinct(parts)
    with Members({part.name: part.cluster for part in parts}, parts[0].deployed.app, options) as members:

        def check_part(member: Member) -> list[str]:
            part = by_name[member.name]
            before = read_inventory(member.cluster, members.app)
            check_owner(before, None)
            leaving = leaving_sets(before, part.objects, options)
            return check(
                member.cluster,
                part.deployed,
                part.objects,
                leaving=leaving,
                now=options.now,
                with_budget=member.is_gateway,
            )

        if skip_offline:
            _leave_out_offline(members)
        command = "`jellybean deploy`"
        _pass_preflight(members, members.run(check_part, together=True), _nothing_applied(command))
        members.acquire_locks(_nothing_applied(command))
        contents = {part.name: RevisionContent.of_plan(part.deployed, part.objects) for part in parts}
        return CommonRollout(members, contents, lambda _: command).run()


def rollback_parts(
    clusters: Mapping[str, Cluster], app: str, number: int | None = None, options: DeployOptions | None = None
) -> Mapping[str, DeployResult]:
    """Serve an earlier revision again in all clusters; the first is the gateway's, which chooses it, as `rollback`.

    The others return to their newest revision of the same plan. DeployError if one has none, before a change.
    """
    options = options or DeployOptions()

    def command(to: int | None) -> str:
        return f"`jellybean rollback{'' if to is None else f' --revision {to}'}`"

    with Members(clusters, app, options) as members:
        waiting = _nothing_applied(command(number))
        _targets(members.read_inventories(waiting), number)  # before a lock is created
        members.acquire_locks(waiting)
        inventories = members.read_inventories(waiting)
        targets = _targets(inventories, number)
        chosen = targets[members.gateway.name].number

        def read_content(member: Member) -> RevisionContent:
            target = targets[member.name]
            return RevisionContent.of_revision(target, read_revision(member.cluster, app, target.number))

        contents = members.run(read_content, together=True).require(waiting)

        def check_part(member: Member) -> list[str]:
            objects = contents[member.name].objects
            leaving = leaving_sets(inventories[member.name], objects, options)
            return check_manifests(member.cluster, app, objects, leaving=leaving, now=options.now)

        _pass_preflight(members, members.run(check_part, together=True), waiting)
        return CommonRollout(members, contents, lambda new: command(chosen if new is None else new)).run()


def _check_distinct(parts: Sequence[ClusterPart]) -> None:
    """DeployError if two parts have the same name, or are of one namespace, whose records would be one."""
    names: dict[tuple[str, str], str] = {}
    for part in parts:
        place = part.cluster.api.configuration.host, part.cluster.namespace
        if place in names or part.name in list(names.values()):
            raise DeployError(f"{names.get(place, part.name)} and {part.name} are the same namespace of one cluster")
        names[place] = part.name


def _nothing_applied(command: str) -> str:
    return f"nothing was applied; run {command} again when it is back"


def _leave_out_offline(members: Members) -> None:
    """Leave out the clusters, except the gateway's, that do not answer now."""
    found = members.run(lambda member: read_inventory(member.cluster, members.app), members.others, patient=False)
    for name in found.away:
        members.say(f"{name} is left out: run `jellybean deploy` again when it is back")
    members.leave_out(found.away)


def _pass_preflight(members: Members, outcome: StepResults[list[str]], waiting: str) -> None:
    """Tell the notes of the checks. PreflightError with the problems of all clusters, if there are any."""
    outcome.raise_stop()
    problems = []
    for name, error in outcome.errors.items():
        lines = error.problems if isinstance(error, PreflightError) else [str(error)]
        problems += [f"{name}: {line}" for line in lines]
    if problems:
        raise PreflightError([*problems, *(f"{error}: it was not checked" for error in outcome.away.values())])
    for name, notes in outcome.require(waiting).items():
        for note in notes:
            members.say(f"{name}: {note}")


def _targets(inventories: Mapping[str, Inventory], number: int | None) -> dict[str, Revision]:
    """The revision to return to in each cluster, the gateway's first. DeployError if one has none."""
    gateway = next(iter(inventories))
    inventory = inventories[gateway]
    if not inventory.exists:
        raise NotDeployedError(f"nothing of {inventory.app} is deployed in {gateway}, the gateway's cluster")
    target = rollback_target(inventory, number)
    found: dict[str, Revision] = {}
    for name, other in inventories.items():
        same = [revision for revision in other.revisions if revision.served == target.served]
        if not same:
            raise DeployError(
                f"nothing was applied: {name} has no revision of the plan of revision {target.number} of {gateway}: "
                "deploy that plan again"
            )
        found[name] = target if name == gateway else same[-1]
    return found
