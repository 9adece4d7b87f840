"""The pods that a deployment adds to a namespace, and what each of them takes of its quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.manifests.quantities import parse_quantity
from jellybean_k8s.names import OWN_PREFIX
from jellybean_k8s.objects import KubeObject, KubeObjectView

DEFAULT_ACCOUNT = "default"  # the ServiceAccount that every namespace has
_ENDED = ("Succeeded", "Failed")
_NO_UID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class NewPods:
    """The pods that a set lacks. `template`: the name that sets share whose pods differ in nothing but their site."""

    kind: str
    name: str
    template: str
    count: int
    pod: KubeObject


def new_pods(objects: Sequence[KubeObjectView], running: Sequence[KubeObjectView]) -> list[NewPods]:
    """The pods that each set among the objects lacks. `running`: the deployment's pods in the cluster."""
    found = []
    for item in objects:
        if item["kind"] in WORKLOADS:
            there = len(pods_of(item, running))
            autoscaled = "replicas" not in item["spec"]
            count = 0 if autoscaled and there else replicas(item, objects) - there
            if count > 0:
                own = item["metadata"]["labels"]
                template = own.get(f"{OWN_PREFIX}/pool", item["metadata"]["name"])
                found.append(NewPods(item["kind"], item["metadata"]["name"], template, count, _pod(item)))
    return found


def replicas(item: KubeObjectView, objects: Iterable[KubeObjectView]) -> int:
    """Number of pods of a set; an autoscaled set starts with the most that its autoscaler allows."""
    name = item["metadata"]["name"]
    scalers = (one["spec"] for one in objects if one["kind"] == "HorizontalPodAutoscaler")
    most = (spec["maxReplicas"] for spec in scalers if spec["scaleTargetRef"]["name"] == name)
    return int(item["spec"].get("replicas", next(most, 1)))


def pods_of(item: KubeObjectView, pods: Iterable[KubeObjectView]) -> list[KubeObjectView]:
    """The pods that a set selects and that have not ended."""
    wanted = item["spec"]["selector"]["matchLabels"].items()
    return [pod for pod in living(pods) if wanted <= (pod["metadata"].get("labels") or {}).items()]


def living(pods: Iterable[KubeObjectView]) -> list[KubeObjectView]:
    """The pods that count against quotas."""
    return [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]


def _pod(item: KubeObjectView) -> KubeObject:
    """A pod as its set's controller would make it; policies may refuse pods without a controller."""
    template, name = item["spec"]["template"], item["metadata"]["name"]
    owner = {"StatefulSet": "StatefulSet", "Deployment": "ReplicaSet"}[item["kind"]]
    reference = {"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": _NO_UID, "controller": True}
    metadata = {**template["metadata"], "generateName": f"{name}-", "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def demand(pod: KubeObjectView) -> dict[str, float]:
    """What a pod takes of quotas: `pods`, `requests.cpu`, `limits.memory`, `requests.nvidia.com/gpu`, ..."""
    found = {"pods": 1.0}
    for kind in ("requests", "limits"):
        for resource, amount in _pod_resources(pod["spec"], kind).items():
            found[f"{kind}.{resource}"] = amount
    return found


def _pod_resources(spec: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Kubernetes' rule: all containers together, or one init container with the sidecars that began before it."""
    sidecars: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        own = _container_resources(container, kind)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, own)
        else:
            most = _largest(most, _sum(sidecars, own))
    together = sidecars
    for container in spec["containers"]:
        together = _sum(together, _container_resources(container, kind))
    overhead = {name: parse_quantity(amount) for name, amount in (spec.get("overhead") or {}).items()}
    return _sum(_largest(most, together), overhead)


def _container_resources(container: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Requests or limits of a container; what is only limited is requested too."""
    resources = container.get("resources") or {}
    wanted = dict(resources.get(kind) or {})
    if kind == "requests":
        wanted = {**(resources.get("limits") or {}), **wanted}
    return {name: parse_quantity(amount) for name, amount in wanted.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _largest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}
