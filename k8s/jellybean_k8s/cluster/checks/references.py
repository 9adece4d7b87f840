"""Claims and Secrets that pods name and that the deployment does not bring: missing ones keep pods waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean_k8s.cluster.cluster import Cluster, ClusterError
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.manifests.settings import DeploymentSettings
from jellybean_k8s.objects import KubeObjectView

CLAIM = "PersistentVolumeClaim"
_FORBIDDEN = 403
Reference = tuple[str, str]  # kind, name


@dataclass
class References:
    """What was found: problems, and what could not be checked."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_references(
    cluster: Cluster, paths: Mapping[Reference, str], objects: Sequence[KubeObjectView], known: frozenset[str]
) -> References:
    """Check that claims and Secrets of the pods exist.

    `paths`: the keys of kubernetes.yaml that name them. `known`: Secrets that are checked elsewhere, or are brought.
    """
    found = References()
    keys: dict[Reference, set[str]] = {}
    for item in objects:
        if item["kind"] in WORKLOADS:
            for reference, key in _references(item["spec"]["template"]["spec"]):
                keys.setdefault(reference, set()).update(key)
    for reference, wanted in sorted(keys.items()):
        kind, name = reference
        if kind == "Secret" and name in known:
            continue
        try:
            there = cluster.get(kind, name)
        except ClusterError as error:
            if error.status != _FORBIDDEN:
                raise
            found.notes.append(f"{kind} {name} was not checked: this user may not get it")
            continue
        if problem := _problem(reference, wanted, there):
            found.problems.append(f"{path}: {problem}" if (path := _path(reference, paths)) else problem)
    return found


def _problem(reference: Reference, keys: set[str], there: KubeObjectView | None) -> str:
    """What is wrong with a claim or Secret; empty if nothing is."""
    kind, name = reference
    if there is None:
        return f"there is no {kind} {name} in the namespace: create it, or name another"
    if "deletionTimestamp" in there["metadata"]:
        return f"{kind} {name} is being deleted: create another"
    if kind == CLAIM and (there.get("status") or {}).get("phase") == "Lost":
        return f"{kind} {name} has lost its volume (phase Lost): restore the volume, or name another claim"
    if lacking := sorted(keys - set(there.get("data") or {})):
        return f"{kind} {name} has no key {', '.join(lacking)}: add it"
    return ""


def _references(pod: KubeObjectView) -> Iterator[tuple[Reference, set[str]]]:
    """Claims and Secrets of a pod, with the keys that it needs of them."""
    for volume in pod["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            yield (CLAIM, claim["claimName"]), set()
        if (secret := volume.get("secret")) and not secret.get("optional"):
            yield ("Secret", secret["secretName"]), {item["key"] for item in secret.get("items") or ()}
    for secret in pod.get("imagePullSecrets") or ():
        yield ("Secret", secret["name"]), set()
    for container in (*pod["initContainers"], *pod["containers"]):
        for variable in container.get("env") or ():
            source = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if source and not source.get("optional"):
                yield ("Secret", source["name"]), {source["key"]}


def _path(reference: Reference, paths: Mapping[Reference, str]) -> str:
    """The key that names a claim or Secret; empty where none is known, as for a revision that served before."""
    return paths.get(reference, "patch") if paths else ""


def setting_paths(settings: DeploymentSettings) -> dict[Reference, str]:
    """Claim or Secret -> the key of kubernetes.yaml that names it."""
    named: dict[tuple[str, str | None], str] = {
        (CLAIM, settings.models.claim): "models.claim",
        (CLAIM, settings.gateway_spool): "gateway.spool",
        ("Secret", settings.models.secret): "models.secret",
        **{("Secret", name): "images.pull_secrets" for name in settings.image_pull_secrets},
    }
    if settings.gateway_ledger is not None:
        named["Secret", settings.gateway_ledger.secret] = "gateway.ledger.secret"
    if settings.models.cache is not None:
        named[CLAIM, settings.models.cache.claim] = "models.cache.claim"
    if settings.traces is not None:
        named["Secret", settings.traces.secret] = "traces.secret"
    return {(kind, name): path for (kind, name), path in named.items() if name is not None}
