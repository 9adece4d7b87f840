"""The Secrets of a deployment, whose plans share them: none is taken from a revision that may serve again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jellybean_k8s.cluster.cluster import Cluster, ClusterError
from jellybean_k8s.cluster.compare import ObjectKey, is_ours, object_key
from jellybean_k8s.objects import KubeObject, KubeObjectView

_FORBIDDEN = 403


def read_secrets(cluster: Cluster, names: Iterable[str]) -> tuple[dict[str, KubeObject], tuple[str, ...]]:
    """The Secrets that exist, by name, and the names of those that this user may not read.

    They are read one by one, which needs no right to list them.
    """
    found: dict[str, KubeObject] = {}
    forbidden = []
    for name in sorted(names):
        try:
            item = cluster.get("Secret", name)
        except ClusterError as error:
            if error.status != _FORBIDDEN:
                raise
            forbidden.append(name)
            continue
        if item is not None:
            found[name] = item
    return found, tuple(forbidden)


def secret_names(objects: Iterable[KubeObjectView]) -> tuple[str, ...]:
    """Names of the Secrets among the objects, and of those that their pods mount."""
    found: set[str] = set()
    for item in objects:
        if item["kind"] == "Secret":
            found.add(item["metadata"]["name"])
        found.update(name for name in mounted(item))
    return tuple(sorted(found))


def mounted(item: KubeObjectView) -> tuple[str, ...]:
    """Names of the Secrets that pods of a set mount."""
    spec = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
    volumes = spec.get("volumes") or ()
    return tuple(volume["secret"]["secretName"] for volume in volumes if "secret" in volume)


def with_kept_keys(
    objects: Sequence[KubeObject], live: Mapping[ObjectKey, KubeObjectView], app: str
) -> list[KubeObject]:
    """The objects, whose Secrets keep the keys that they have in the cluster: of workers of other revisions."""
    return [_with_kept_keys(item, live.get(object_key(item)), app) for item in objects]


def _with_kept_keys(item: KubeObject, there: KubeObjectView | None, app: str) -> KubeObject:
    if item["kind"] != "Secret" or there is None or not is_ours(there, app):
        return item
    return {**item, "data": {**(there.get("data") or {}), **item["data"]}}
