"""A small workflow as a custom resource: two variants, two pools, planned in milliseconds."""

from __future__ import annotations

import hashlib
from typing import Any

from jellybean_k8s import CRD_API_VERSION, CRD_KIND


def model(name: str) -> dict[str, str]:
    """A variant with a model file of which only the hash is known."""
    return {"model": f"models/{name}.onnx", "sha256": hashlib.sha256(name.encode()).hexdigest()}


def resource(name: str = "digits", *, count: int = 2, **spec: Any) -> dict[str, Any]:
    """`count`: of boxes at the edge. What is None in `spec` is left out."""
    latency = {"box": {"1": {"mean": "40 ms"}}, "big": {"1": {"mean": "4 ms"}}}
    slow = {"box": {"1": {"mean": "200 ms"}}, "big": {"1": {"mean": "20 ms"}}}
    found: dict[str, Any] = {
        "apiVersion": CRD_API_VERSION,
        "kind": CRD_KIND,
        "metadata": {"name": name},
        "spec": {
            "sources": {"strip": {"tier": "edge", "rate": "10/s", "message": "10 KiB"}},
            "operators": {
                "read": {
                    "inputs": [{"from": "strip"}],
                    "variants": {"small": model("small"), "large": model("large")},
                }
            },
            "slo": {"accuracy": 80, "budget": "2 USD/h"},
            "infrastructure": {
                "tiers": ["edge", "cloud"],
                "workers": {
                    "box": {"tier": "edge", "count": count, "price": "0.1 USD/h"},
                    "big": {"tier": "cloud", "count": 2, "price": "0.9 USD/h"},
                },
                "links": [{"from": "edge", "to": "cloud", "price": "0.1 USD/GiB"}],
            },
            "profiles": {
                "operators": {"read": {"small": {"latency": latency}, "large": {"latency": slow}}},
                "accuracy": {"independent": {"read": {"small": 85, "large": 95}}},
            },
            "kubernetes": {
                "images": {"agent": {"cpu": "registry.example/agent:1"}, "gateway": "registry.example/gateway:1"},
                "models": {"url": "https://models.example/digits"},
                "pools": {"box": {"one_per_node": False}},
            },
            "replan": {"debounce": "0 s"},
        },
    }
    wanted = {**found["spec"], **spec}
    return found | {"spec": {key: value for key, value in wanted.items() if value is not None}}
