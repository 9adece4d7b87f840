"""Objects of a deployment by kind and name, and settings with an image for each kind of device."""

from __future__ import annotations

import dataclasses
from typing import Any

from jellybean_k8s.objects import KubeObject
from tests.k8s_plans import SETTINGS

IMAGES = dataclasses.replace(
    SETTINGS, agent_images={name: f"registry.example/agent-{name}:1" for name in ("cpu", "cuda", "rocm")}
)


def find(objects: tuple[KubeObject, ...], kind: str, part: str = "") -> Any:
    """The first object of a kind whose name has this part."""
    return next(item for item in objects if item["kind"] == kind and part in item["metadata"]["name"])


def pod(objects: tuple[KubeObject, ...], part: str) -> Any:
    """The pod's spec of a set whose name has this part."""
    return find(objects, "StatefulSet", part)["spec"]["template"]["spec"]
