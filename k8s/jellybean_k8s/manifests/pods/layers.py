"""Lays the settings of pods over a pod template: those of all pods, then those of its component. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.pod_settings import PodSettings
from jellybean_k8s.manifests.pods.patch import patched
from jellybean_k8s.manifests.quantities import cores, parse_quantity, with_canonical_quantities
from jellybean_k8s.objects import KubeObject, KubeObjectView

_ROUNDING = 1e-6  # cores by which quantities of CPU are rounded
PodLayers = Sequence[tuple[str, PodSettings]]  # path in kubernetes.yaml, settings; later ones go first


def with_pod_settings(template: KubeObjectView, layers: PodLayers) -> KubeObject:
    """The template with the settings; patches come last. DeployError with the path of one that cannot be."""
    found = copy.deepcopy(dict(template))
    for _, pods in layers:
        _set_fields(found, pods)
    limited = [(path, pods.cpu_limit) for path, pods in layers if pods.cpu_limit is not None]
    if limited:
        _limit_cpu(found, *limited[-1])
    for path, pods in layers:
        if pods.patch:
            found = patched(found, pods.patch, f"{path}.patch")
    return dict(with_canonical_quantities(found))


def _set_fields(template: KubeObject, pods: PodSettings) -> None:
    metadata, spec = template["metadata"], template["spec"]
    metadata["labels"] |= pods.labels
    metadata["annotations"] |= pods.annotations
    spec["tolerations"] += [dict(one) for one in pods.tolerations if one not in spec["tolerations"]]
    if pods.priority is not None:
        spec["priorityClassName"] = pods.priority
    if pods.runtime_class is not None:
        spec["runtimeClassName"] = pods.runtime_class
    if pods.env:
        for container in _containers(spec):
            known = {item["name"]: item for item in container.get("env", ())}
            known |= {name: {"name": name, "value": value} for name, value in pods.env.items()}
            container["env"] = list(known.values())


def _limit_cpu(template: KubeObject, path: str, limit: float) -> None:
    """Limit every container, as a quota of CPU limits wants. The init container asks for no more than its limit."""
    spec = template["spec"]
    for container in spec["initContainers"]:
        requests = container["resources"]["requests"]
        requests["cpu"] = cores(min(limit, parse_quantity(requests["cpu"])))
    for container in spec["containers"]:
        wanted = container["resources"]["requests"]["cpu"]
        if limit < parse_quantity(wanted) - _ROUNDING:
            raise DeployError(
                f"{path}.cpu_limit: {limit:g} cores are below the {wanted} that {container['name']} requests: raise "
                "it, or lower cpu"
            )
    for container in _containers(spec):
        container["resources"]["limits"] = {"cpu": cores(limit), **container["resources"]["limits"]}


def _containers(spec: KubeObject) -> list[KubeObject]:
    return [*spec["initContainers"], *spec["containers"]]
