"""The rights that deploying takes, and no more. Pods have none: they never talk to the API server."""

from __future__ import annotations

from typing import Any

from jellybean_k8s.names import APP, MANAGER

_APPLIED = ("get", "list", "watch", "create", "patch", "delete")  # server-side apply of a new object takes create too
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("configmaps", "serviceaccounts", "services"), ("get", "list", "create", "patch", "delete")),
    ("", ("secrets",), ("get", "create", "patch", "delete")),
    ("", ("pods",), ("list", "watch")),
    ("", ("events",), ("list",)),
    ("apps", ("deployments", "statefulsets"), _APPLIED),
    ("apps", ("statefulsets/scale",), ("patch",)),
    ("autoscaling", ("horizontalpodautoscalers",), ("get", "list", "create", "patch", "delete")),
    ("coordination.k8s.io", ("leases",), ("get", "create", "update", "delete")),
    ("monitoring.coreos.com", ("servicemonitors",), ("get", "list", "create", "patch", "delete")),
    ("networking.k8s.io", ("networkpolicies",), ("get", "list", "create", "patch", "delete")),
    ("policy", ("poddisruptionbudgets",), ("get", "list", "create", "patch", "delete")),
)


def deployer_role() -> dict[str, Any]:
    """For whoever deploys, in the namespace that is deployed to. To list nodes, and all pods, goes beyond it."""
    rules = [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources, verbs in _RULES
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {
            "name": "jellybean-deployer",
            "labels": {f"{APP}/name": "jellybean", f"{APP}/managed-by": MANAGER},
        },
        "rules": rules,
    }
