"""Admission of pods as by a Kubernetes API server: ServiceAccounts and quotas, with its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jellybean_k8s.manifests.quantities import parse_quantity
from tests.api_objects import Object, Refused

Store = Mapping[tuple[str, str, str], Object]


def admit_pod(store: Store, namespace: str, pod: Object) -> None:
    """Refused if the pod's ServiceAccount does not exist, or a quota of the namespace has no room for it."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    account = spec.get("serviceAccountName", "default")
    if account != "default" and ("serviceaccounts", namespace, account) not in store:
        reason = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {reason}')
    for (plural, space, _), quota in sorted(store.items()):
        if plural == "resourcequotas" and space == namespace:
            _refuse_over_quota(with_usage(store, quota), name, spec)


def with_usage(store: Store, quota: Object) -> Object:
    """A quota with the status that its controller keeps."""
    hard, namespace = quota["spec"]["hard"], quota["metadata"]["namespace"]
    pods = [item["spec"] for (plural, space, _), item in store.items() if (plural, space) == ("pods", namespace)]
    used = {name: f"{sum(_taken(pod).get(name, 0.0) for pod in pods):g}" for name in hard}
    return {**quota, "status": {"hard": hard, "used": used}}


def _refuse_over_quota(quota: Object, name: str, spec: Any) -> None:
    hard, used, taken = quota["spec"]["hard"], quota["status"]["used"], _taken(spec)
    missing = [resource for resource in hard if resource not in taken]
    if missing:
        lacking = "; ".join(f"{resource} for: {','.join(_silent(spec, resource))}" for resource in missing)
        reason = f"failed quota: {quota['metadata']['name']}: must specify {lacking}"
        raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {reason}')
    for resource, limit in hard.items():
        if parse_quantity(used[resource]) + taken[resource] > parse_quantity(limit):
            figures = f"requested: {resource}={taken[resource]:g}, used: {resource}={used[resource]}"
            reason = f"exceeded quota: {quota['metadata']['name']}, {figures}, limited: {resource}={limit}"
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {reason}')


def _silent(spec: Any, resource: str) -> list[str]:
    """Names of the containers that do not name a resource of a quota, such as limits.cpu."""
    kind, _, name = resource.partition(".")
    containers = (*spec["initContainers"], *spec["containers"])
    return sorted(one["name"] for one in containers if name not in (one["resources"].get(kind) or {}))


def _taken(spec: Any) -> dict[str, float]:
    """What a pod's containers ask for together; a resource is missing if one of all containers does not name it."""
    found = {"pods": 1.0}
    for kind in ("requests", "limits"):
        named = [one["resources"].get(kind) or {} for one in (*spec["initContainers"], *spec["containers"])]
        for resource in set.intersection(*(set(one) for one in named)):
            amounts = (one["resources"][kind][resource] for one in spec["containers"])
            found[f"{kind}.{resource}"] = sum(map(parse_quantity, amounts))
    return found
