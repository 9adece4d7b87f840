"""Deploys a plan over several clusters.

All clusters' objects have the plan's hash in their names; the gateway and the Service of the clients are in one
cluster, the first. A revision has the same number in all clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean_k8s.cluster.checks.preflight import check
from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.phases import DeployResult
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import Inventory, check_owner, read_inventory
from jellybean_k8s.cluster.rollout import DeployOptions
from jellybean_k8s.cluster.several.checks import (
    CheckedPart,
    check_moved,
    check_part,
    check_parts,
    check_places,
    leave_out_offline,
    supported_objects,
)
from jellybean_k8s.cluster.several.common_rollout import CommonRollout
from jellybean_k8s.cluster.several.member import Member
from jellybean_k8s.cluster.several.members import Members
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.routes_left import has_route_in
from jellybean_k8s.objects import KubeObject

_COMMAND = "`jellybean deploy`"
_WAITING = f"nothing was applied; run {_COMMAND} again when it is back"


@dataclass(frozen=True)
class ClusterPart:
    """What of a plan is deployed to one cluster. `name`: of the cluster in messages and records.

    `objects`: with Secrets of certificates. The first part's last one is the clients' Service. ServiceMonitors are left
    out in clusters that do not have them.
    """

    name: str
    cluster: Cluster
    deployed: DeployedPlan
    objects: Sequence[KubeObject]


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
    used = tuple(part.name for part in parts if part.objects)
    inventories: dict[str, Inventory] = {}
    with Members({part.name: part.cluster for part in parts}, parts[0].deployed.app, options) as members:

        def check_one(member: Member) -> CheckedPart:
            part = by_name[member.name]
            inventory = inventories[member.name] = read_inventory(member.cluster, members.app)
            check_owner(inventory, None)
            objects = supported_objects(member.cluster, part.objects)
            return check_part(
                member,
                inventory,
                RevisionContent.of_plan(part.deployed, objects, used),
                lambda found, leaving: check(
                    member.cluster,
                    part.deployed,
                    found,
                    leaving=leaving,
                    now=options.now,
                    with_budget=member.is_gateway,
                ),
            )

        if skip_offline:
            leave_out_offline(members, f": run {_COMMAND} again when it is back")
            _check_routes(parts, [member.name for member in members])
        contents = check_parts(members, check_one, _WAITING)
        check_places(inventories, by_name, members.gateway.name, in_place=options.in_place)
        for warning in check_moved(inventories, contents, {part.name: part.cluster for part in parts}):
            members.say(warning)
        members.acquire_locks(_WAITING)
        return CommonRollout(members, contents, lambda _: _COMMAND).run()


def _check_routes(parts: Sequence[ClusterPart], there: Sequence[str]) -> None:
    """DeployError if the plan serves nothing without the clusters that were left out: its gateway would wait."""
    if not has_route_in(part.deployed for part in parts if part.name in there):
        missing = ", ".join(part.name for part in parts if part.name not in there)
        raise DeployError(
            f"nothing was applied: every route of the plan leads through workers in {missing}; without --skip-offline "
            "it is waited for"
        )


def _check_distinct(parts: Sequence[ClusterPart]) -> None:
    """DeployError if two parts have the same name, or are of one namespace, whose records would be one."""
    names: dict[tuple[str, str], str] = {}
    for part in parts:
        place = part.cluster.api.configuration.host, part.cluster.namespace
        if place in names or part.name in list(names.values()):
            raise DeployError(f"{names.get(place, part.name)} and {part.name} are the same namespace of one cluster")
        names[place] = part.name
