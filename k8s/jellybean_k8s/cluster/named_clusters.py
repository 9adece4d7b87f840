"""Compares the clusters that the revisions of a deployment name with those that kubernetes.yaml names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from jellybean_k8s.cluster.revisions import DEPLOYED, Inventory, Revision
from jellybean_k8s.errors import DeployError


def forgotten_clusters(records: Iterable[Sequence[Revision]], named: Collection[str]) -> dict[str, int]:
    """Cluster -> newest revision with objects there, of the clusters that are not `named`.

    `records`: the revisions as recorded in each cluster. Revisions older than the serving one do not count: the
    deployment that replaced them has pruned their objects.
    """
    revisions = sorted((one for record in records for one in record), key=lambda one: one.number)
    serving = max((one.number for one in revisions if one.state == DEPLOYED), default=0)
    return {
        name: one.number for one in revisions if one.number >= serving for name in one.clusters if name not in named
    }


def forgotten_beside(inventory: Inventory) -> dict[str, int]:
    """As `forgotten_clusters`, where kubernetes.yaml names no clusters and this inventory is of the only one."""
    named = next((one.clusters for one in reversed(inventory.revisions) if one.clusters), ())
    return forgotten_clusters([inventory.revisions], named[:1] if inventory.has_client_service else ())


def forgotten_lines(forgotten: Mapping[str, int], *, undeploys: bool = False) -> list[str]:
    """A line for each cluster, with what to do, also to remove the whole deployment."""
    lines = []
    for name, number in forgotten.items():
        entry = f"`{name}: {{context: ...}}` in clusters"
        remedy = f"write it with no tiers ({entry}) and deploy, which empties it; then remove it"
        if undeploys:
            remedy = f"write it ({entry}) and undeploy again, which empties it too"
        lines.append(f"{name} has objects of revision {number}, and kubernetes.yaml does not name it: {remedy}")
    return lines


def check_forgotten(forgotten: Mapping[str, int], *, undeploys: bool = False) -> None:
    """DeployError if objects would be left behind in clusters that are not named."""
    if forgotten:
        raise DeployError("\n".join(["nothing was changed:", *forgotten_lines(forgotten, undeploys=undeploys)]))


def check_target(target: Revision, named: Collection[str]) -> None:
    """DeployError if a revision to return to also ran in clusters that are not named."""
    if missing := [name for name in target.clusters if name not in named]:
        which = "it was" if len(missing) == 1 else "they were"
        raise DeployError(
            f"nothing was applied: revision {target.number} also ran in {', '.join(missing)}: write "
            f"{'it' if len(missing) == 1 else 'them'} into kubernetes.yaml (clusters), as {which} then"
        )
