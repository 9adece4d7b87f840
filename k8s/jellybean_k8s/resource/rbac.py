"""RBAC rules that deploying and the operator need, and no more. Pods of a plan need none (ADR 8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX

_APPLIED = ("get", "list", "watch", "create", "patch", "delete")  # server-side apply of a new object needs `create` too
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("configmaps", "serviceaccounts", "services"), ("get", "list", "create", "patch", "delete")),
    ("", ("secrets",), ("get", "create", "patch", "delete")),
    ("", ("persistentvolumeclaims",), ("get",)),
    ("", ("pods",), ("list", "watch", "create")),  # `create` for dry runs of one pod of each set
    ("", ("resourcequotas",), ("list",)),
    ("", ("events",), ("list",)),
    ("apps", ("deployments", "statefulsets"), _APPLIED),
    ("apps", ("statefulsets/scale",), ("patch",)),
    ("autoscaling", ("horizontalpodautoscalers",), ("get", "list", "create", "patch", "delete")),
    ("coordination.k8s.io", ("leases",), ("get", "create", "update", "delete")),
    ("monitoring.coreos.com", ("servicemonitors",), ("get", "list", "create", "patch", "delete")),
    ("networking.k8s.io", ("networkpolicies",), ("get", "list", "create", "patch", "delete")),
    ("policy", ("poddisruptionbudgets",), ("get", "list", "create", "patch", "delete")),
)


_OPERATOR_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("events",), ("create",)),
    ("", ("pods/proxy",), ("get",)),  # what gateways have measured
    (OWN_PREFIX, ("workflows",), ("get", "list", "watch", "patch")),
    (OWN_PREFIX, ("workflows/status",), ("patch",)),
)


def operator_rules() -> list[dict[str, Any]]:
    """Rules of the operator in every namespace it serves; listing nodes and all pods needs cluster-wide rights."""
    return _rules((*_RULES, *_OPERATOR_RULES))


def deployer_role() -> dict[str, Any]:
    """Role of a person who deploys to a namespace; listing nodes and all pods needs cluster-wide rights."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {
            "name": "jellybean-deployer",
            "labels": {f"{APP_PREFIX}/name": "jellybean", f"{APP_PREFIX}/managed-by": FIELD_MANAGER},
        },
        "rules": _rules(_RULES),
    }


def _rules(rules: Iterable[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources, verbs in rules
    ]
