"""Random kubernetes.yaml documents for a plan, with every key of the document, as a person may write them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from jellybean.documents import FROM_DOCUMENT, KubernetesDocument
from jellybean.documents.kubernetes import deployment_settings
from jellybean_k8s import DeploymentSettings
from jellybean_solver import Plan

_IMAGES = ("registry.example/jellybean:0.1.0", f"host:5000/a/b@sha256:{'0' * 64}")
_RESOURCES = ({"cpu": 0.5, "memory": "1024Mi"}, {"cpu": "1000m", "memory": "1048576Ki"}, {"cpu": 1, "memory": "1e9"})


def random_settings(rng: random.Random, plan: Plan) -> DeploymentSettings:
    """The settings of a random document."""
    document = random_document(rng, plan)
    return deployment_settings(KubernetesDocument.model_validate(document, context=FROM_DOCUMENT))


def random_document(rng: random.Random, plan: Plan) -> dict[str, Any]:
    """kubernetes.yaml, parsed, for the plan's pools, tiers and devices."""
    devices = {worker.pool: worker.device for worker in plan.workers}
    images = {device: rng.choice(_IMAGES) for device in sorted(set(devices.values()))}
    alone = set(images) == {"cpu"} and rng.random() < 0.5
    found: dict[str, Any] = {
        "kind": "Kubernetes",
        "images": {"agent": images["cpu"] if alone else images, "gateway": rng.choice(_IMAGES)},
        "models": _models(rng),
        "pods": _pods(rng, 0.0, "pods"),
        "pools": {pool: _pool(rng, device) for pool, device in devices.items() if rng.random() < 0.7},
        "gateway": _gateway(rng, plan),
    }
    _maybe(rng, found["images"], "pull_secrets", ["pull"], ["pull", "other"], ["pull", "pull"])
    _maybe(rng, found, "name", "Some_Name", "shop", "x" * 63)
    _maybe(rng, found, "description", "a deployment: with \u00fcmlauts and 'quotes'")
    _maybe(
        rng, found, "traces",
        {"endpoint": "http://collector.otel:4317", "ratio": 0.01},
        {"endpoint": "https://collector:4318/base", "secret": "collector"},
    )  # fmt: skip
    _maybe(rng, found, "tier_label", "example.com/tier", "own/tier")
    _maybe(rng, found, "site_label", "example.com/site")
    _maybe(rng, found, "edge", [], list(plan.tiers[:1]), list(plan.tiers))
    _maybe(rng, found, "allow_python", ["my_steps:crop"], [])
    _maybe(rng, found, "drain", "0.5 s", "90 s")
    _maybe(rng, found, "start", "30 s", "1 h")
    _maybe(rng, found, "unreachable", "1 h", "0 s")
    return found


def _maybe(rng: random.Random, to: dict[str, Any], key: str, *values: Any) -> None:
    if rng.random() < 0.4:
        to[key] = rng.choice(values)


def _models(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = dict(
        rng.choice(
            (
                {"url": "https://models.example/digits/"},
                {"url": "http://models.example:8080/x"},
                {"url": "https://models.example:8443", "secret": "token"},
                {"image": "registry.example/models:1"},
                {"claim": "models"},
            )
        )
    )
    if "url" in found:
        _maybe(rng, found, "cache", {"claim": "models"}, {"claim": "kept", "size": "100 GiB"})
    else:
        _maybe(rng, found, "folder", "digits", "/a/b/")
    return found


def _pool(rng: random.Random, device: str) -> dict[str, Any]:
    cpu = rng.choice((0.25, 1, 1.5, 1000))
    found = {"cpu": cpu, **_pods(rng, float(cpu), "agent")}
    _maybe(rng, found, "memory", "512 MiB", "1 TiB", "1.5 GB")
    _maybe(rng, found, "nodes", {}, {"example.com/kind": "box"}, {"kubernetes.io/arch": "arm64", "zone": ""})
    _maybe(rng, found, "one_per_node", True, False)
    if (gpus := _GPUS.get(device)) is not None:
        _maybe(rng, found, "gpu", *gpus)
        if device == "openvino" and "gpu" in found:
            _maybe(rng, found, "gpus", 1, 4)
    elif rng.random() < 0.5:
        found["autoscale"] = True
    return found


_GPUS: Mapping[str, Sequence[str]] = {
    "cuda": ("nvidia", "nvidia.com/gpu"),
    "rocm": ("amd",),
    "openvino": ("intel", "vendor.example/npu"),
}


def _gateway(rng: random.Random, plan: Plan) -> dict[str, Any]:
    cpu = rng.choice((0.05, 1, 2.25))
    found: dict[str, Any] = {"cpu": cpu, "spool": "kept", **_pods(rng, float(cpu), "gateway")}
    _maybe(rng, found, "tier", *plan.tiers)
    _maybe(rng, found, "memory", "2 GiB", "700 MB")
    _maybe(
        rng, found, "ledger",
        {"url": "postgresql+psycopg://u@db.example:6432/ledger", "secret": "ledger"},
        {"url": "postgresql+psycopg://u@db.example/ledger"},
    )  # fmt: skip
    _maybe(rng, found, "service", *({"type": kind, "annotations": {"a.example/b": "c: d"}} for kind in _TYPES))
    return found


_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")


def _pods(rng: random.Random, cpu: float, component: str) -> dict[str, Any]:
    """Settings of pods; limits are above all requests."""
    found: dict[str, Any] = {}
    _maybe(rng, found, "cpu_limit", *((cpu, cpu + 0.5) if cpu else (1024,)))
    _maybe(rng, found, "priority", "serving")
    _maybe(rng, found, "runtime_class", "gvisor")
    _maybe(rng, found, "labels", {"team": "vision", "example.com/empty": ""}, {"a" * 63: "b" * 63})
    _maybe(rng, found, "annotations", {"example.com/text": 'any text: "quoted"\nin lines\n'}, {"x": ""})
    _maybe(
        rng, found, "tolerations",
        [{"operator": "Exists"}],
        [{"key": "a.example/b", "value": "c", "effect": "NoExecute", "tolerationSeconds": 0}, {"key": "d"}],
    )  # fmt: skip
    _maybe(rng, found, "env", {"HTTPS_PROXY": "http://proxy:3128", "EMPTY": ""}, {"A.B-C": "$(POD_NAME) 'x'"})
    if rng.random() < 0.5:
        found["patch"] = _patch(rng, component)
    return found


def _patch(rng: random.Random, component: str) -> dict[str, Any]:
    """A patch that keeps the restricted level: other metadata, scheduling, resources, and one more init container."""
    beside = {
        "name": f"beside-{component}",
        "image": "registry.example/beside:1",
        "restartPolicy": "Always",
        "resources": {"requests": rng.choice(_RESOURCES), "limits": rng.choice(_RESOURCES[:2])},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [],
    }
    spec: dict[str, Any] = rng.choice(
        (
            {"dnsPolicy": "ClusterFirst", "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.example"]}]},
            {"initContainers": [beside]},
            {"volumes": [{"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "0.125Gi"}}]},
            {"initContainers": [{"name": "prepare", "resources": {"limits": {"memory": "1024Mi"}}}]},
            {"securityContext": {"fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [2000]}},
        )
    )
    return {"metadata": {"labels": {"patched": "yes"}, "annotations": {"example.com/gone": None}}, "spec": spec}
