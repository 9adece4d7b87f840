"""Checks of a deployment over several clusters, before anything is applied to one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from jellybean_k8s.cluster.checks.preflight import PreflightError
from jellybean_k8s.cluster.cluster import Cluster, UnreachableError
from jellybean_k8s.cluster.compare import difference, is_ours
from jellybean_k8s.cluster.named_clusters import check_forgotten, forgotten_clusters
from jellybean_k8s.cluster.phases import leaving_sets
from jellybean_k8s.cluster.revision_content import RevisionContent
from jellybean_k8s.cluster.revisions import Inventory, read_inventory
from jellybean_k8s.cluster.several.member import Member
from jellybean_k8s.cluster.several.members import Members
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.relay_names import relay_name
from jellybean_k8s.objects import KubeObject

MONITORING = "monitoring.coreos.com/v1"
Preflight = Callable[[Sequence[KubeObject], frozenset[str]], list[str]]  # objects, sets that leave -> notes


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """A cluster that can get a revision. `notes`: on checks that were not possible."""

    inventory: Inventory
    content: RevisionContent
    notes: Sequence[str]


def leave_out_offline(members: Members, next_step: str = "") -> tuple[str, ...]:
    """Leave out the clusters that do not answer now, and tell so; returns their names.

    UnreachableError if the gateway's is one of them.
    """
    found = members.run(lambda member: read_inventory(member.cluster, members.app), patient=False)
    if (error := found.away.get(members.gateway.name)) is not None:
        what = f"nothing was applied: {error}; the gateway is there, so it cannot be left out"
        raise UnreachableError(what, error.reason)
    for name in found.away:
        members.say(f"{name} is left out{next_step}")
    members.leave_out(found.away)
    return tuple(found.away)


def supported_objects(cluster: Cluster, objects: Sequence[KubeObject]) -> tuple[KubeObject, ...]:
    """The objects without ServiceMonitors, where the cluster does not have them."""
    is_monitored = any(item["kind"] == "ServiceMonitor" for item in objects) and cluster.serves(MONITORING)
    return tuple(item for item in objects if is_monitored or item["kind"] != "ServiceMonitor")


def check_part(member: Member, inventory: Inventory, content: RevisionContent, preflight: Preflight) -> CheckedPart:
    """Run the checks of one cluster. PreflightError with every problem."""
    problems = _relay_changes(member, inventory, content)
    notes: list[str] = []
    try:
        notes = preflight(content.objects, leaving_sets(inventory, content.objects, member.options))
    except PreflightError as error:
        problems += error.problems
    if problems:
        raise PreflightError(problems)
    return CheckedPart(inventory, content, notes)


def check_parts(members: Members, check: Callable[[Member], CheckedPart], waiting: str) -> dict[str, RevisionContent]:
    """Check all clusters, and tell the notes; returns what each gets. PreflightError with the problems of all.

    `waiting`: what it means if one is away.
    """
    outcome = members.run(check, together=True)
    outcome.raise_stop()
    problems = []
    for name, error in outcome.errors.items():
        lines = error.problems if isinstance(error, PreflightError) else [str(error)]
        problems += [f"{name}: {line}" for line in lines]
    if problems:
        raise PreflightError([*problems, *(f"{error}: it was not checked" for error in outcome.away.values())])
    checked = outcome.require(waiting)
    for name, one in checked.items():
        for note in one.notes:
            members.say(f"{name}: {note}")
    return {name: one.content for name, one in checked.items()}


def check_places(inventories: Mapping[str, Inventory], named: Collection[str], gateway: str, *, in_place: bool) -> None:
    """DeployError if a cluster with objects is not `named`, or another one than `gateway` has the clients' Service."""
    check_forgotten(forgotten_clusters((one.revisions for one in inventories.values()), named))
    for name, inventory in inventories.items():
        if name != gateway and inventory.has_client_service and not in_place:
            app = inventory.app
            raise DeployError(
                f"nothing was applied: the gateway would move from {name} to {gateway}. Clients that call the Service "
                f"{app} in {name} would have to call the one in {gateway}, and requests that are kept on the volume "
                f"gateway.spool would stay in {name}, unanswered: if that is meant, --in-place does so"
            )


def check_moved(
    inventories: Mapping[str, Inventory], contents: Mapping[str, RevisionContent], clusters: Mapping[str, Cluster]
) -> list[str]:
    """Warnings about clusters that have nothing of the serving revision, though it ran in them.

    kubernetes.yaml may name another context or namespace now. DeployError where such a cluster is to be emptied.
    """
    serving = max(
        (one.current for one in inventories.values() if one.current), key=lambda one: one.number, default=None
    )
    warnings = []
    for name, inventory in inventories.items():
        if serving is None or name not in serving.clusters or inventory.exists:
            continue
        lacks = f"{name} has nothing of {inventory.app} in {clusters[name].namespace}, though revision {serving.number}"
        if not contents[name].objects:
            raise DeployError(
                f"nothing was applied: {lacks} runs in {name}: write the context and namespace in which it runs, so "
                "that it can be emptied"
            )
        warnings.append(
            f"{lacks} is for it: unless it was left out until now, its context or namespace in kubernetes.yaml has "
            "changed, and the pods in the old place still run: undeploy there"
        )
    return warnings


def _relay_changes(member: Member, inventory: Inventory, content: RevisionContent) -> list[str]:
    """A problem if the Service that tunnels of all plans dial would change while another plan serves through it."""
    app, current = inventory.app, inventory.current
    name = relay_name(app)
    wanted = next((o for o in content.objects if o["kind"] == "Service" and o["metadata"]["name"] == name), None)
    if wanted is None or current is None or current.served == content.served or member.options.in_place:
        return []
    live = member.cluster.get("Service", name)
    if live is None or not is_ours(live, app):
        return []
    spec = {key: wanted["spec"].get(key) for key in ("type", "ports")}
    if (what := difference(live["spec"], spec, "spec")) is None:
        return []
    return [
        f"Service {name} would change ({what}) while tunnels of the running plan dial it, which cuts them off before "
        "the new plan serves: keep the port of relay.address and relay.service, or let --in-place remove the running "
        "plan first; requests are then refused until the new one is ready"
    ]
