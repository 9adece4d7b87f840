"""A plan on Kubernetes: manifests as a pure function of plan and settings, and the way they get to a cluster.

Other packages import from here, never from a room. Names are loaded on first use (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES: dict[str, tuple[str, ...]] = {
    "cluster.certificates": ("certificate_secrets",),
    "cluster.cluster": (
        "Cluster",
        "ClusterError",
        "UnreachableError",
        "connect",
    ),
    "cluster.deploy": (
        "Options",
        "Outcome",
        "StoppedError",
        "deploy",
        "dry_run",
        "rollback",
        "undeploy",
    ),
    "cluster.discover": (
        "Fleet",
        "INSTANCE_LABELS",
        "NodePool",
        "POOL_LABEL",
        "PRICE_LABEL",
        "discover",
    ),
    "cluster.lock": (
        "Lock",
        "LockedError",
    ),
    "cluster.preflight": ("PreflightError",),
    "cluster.records": (
        "plan_record",
        "read_inventory",
        "read_plan_record",
    ),
    "cluster.status": (
        "Status",
        "read_status",
    ),
    "cluster.wait": ("NotReadyError",),
    "errors": ("DeployError",),
    "manifests.commands": ("tls_secret",),
    "manifests.kustomize": ("kustomize_base",),
    "manifests.render": (
        "Objects",
        "render",
    ),
    "manifests.served": (
        "Deployed",
        "app_name",
        "deployment_name",
        "digest",
    ),
    "manifests.settings": (
        "GPU_RESOURCES",
        "MIB",
        "Models",
        "PoolSettings",
        "Settings",
    ),
    "manifests.training": (
        "TrainingJob",
        "training_objects",
    ),
    "manifests.yaml_text": (
        "documents",
        "to_yaml",
    ),
    "names": (
        "APP",
        "MANAGER",
        "SITE_LABEL",
        "TIER_LABEL",
        "dns_name",
    ),
    "resource.crd": (
        "API_VERSION",
        "CONDITIONS",
        "CRD_NAME",
        "DEPLOYED",
        "GROUP",
        "KIND",
        "PLANNED",
        "PLURAL",
        "READY",
        "VERSION",
        "crd",
    ),
    "resource.rights": ("deployer_role",),
    "resource.structural": (
        "Rules",
        "structural",
    ),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the stub beside this file lists the same names for type checkers)


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
