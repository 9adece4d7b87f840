"""A plan on Kubernetes: manifests as a pure function of plan and settings, and the way they get to a cluster."""

from __future__ import annotations

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.render import render
from jellybean_k8s.manifests.settings import Models, PoolSettings, Settings

__all__ = ["DeployError", "Models", "PoolSettings", "Settings", "render"]
