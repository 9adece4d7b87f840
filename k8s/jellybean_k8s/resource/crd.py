"""The custom resource Workflow: its names, its status and the CustomResourceDefinition. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jellybean_k8s.names import APP, MANAGER, OWN

Schema = dict[str, Any]

GROUP, VERSION, KIND, PLURAL = OWN, "v1alpha1", "Workflow", "workflows"
API_VERSION = f"{GROUP}/{VERSION}"
CRD_NAME = f"{PLURAL}.{GROUP}"
SHORT_NAME = "jb"
READY, PLANNED, DEPLOYED = "Ready", "Planned", "Deployed"  # conditions
CONDITIONS = (PLANNED, DEPLOYED, READY)
_WORD, _TEXT = 63, 32_768

_COLUMNS = (  # header, path, type
    ("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
    ("Plan", ".status.plan", "string"),
    ("Cost USD/h", ".status.costUsdPerHour", "number"),
    ("Accuracy", ".status.accuracy", "number"),
    ("Gap", ".status.gap", "string"),
    ("Age", ".metadata.creationTimestamp", "date"),
)


def crd(spec: Mapping[str, Any], rules: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The CustomResourceDefinition around a structural schema of the spec; `rules` (CEL) hold for the whole object."""
    root: Schema = {
        "type": "object",
        "description": "An ML workflow that is planned at the lowest cost and served on the nodes of this cluster.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": dict(spec),
            "status": _status(),
        },
        "required": ["spec"],
        "x-kubernetes-validations": [{"rule": rule, "message": text} for rule, text in rules],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": name, "jsonPath": path, "type": kind} for name, path, kind in _COLUMNS],
    }
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME, "labels": {f"{APP}/name": "jellybean", f"{APP}/managed-by": MANAGER}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "shortNames": [SHORT_NAME], "categories": ["jellybean"]},
            "versions": [version],
        },
    }


def _status() -> Schema:
    text = {"type": "string", "maxLength": _WORD}
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "lastTransitionTime"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": {"type": "string", "maxLength": _TEXT},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    return {
        "type": "object",
        "description": "Written by the operator.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "name": {**text, "description": "Of the deployment, and of the Service of its clients."},
            "plan": {**text, "description": "Hash of the plan that was decided on last."},
            "served": {**text, "description": "Short hash of the plan that clients are led to, as objects carry it."},
            "revision": {"type": "integer", "format": "int64", "description": "Of the deployment that serves."},
            "costUsdPerHour": {"type": "number", "description": "Predicted."},
            "accuracy": {"type": "number", "description": "Predicted, percent."},
            "gap": {**text, "description": "How much dearer than the optimum the plan may be, proven."},
            "fleet": {"type": "string", "maxLength": _TEXT, "description": "What it was planned for."},
            "conditions": {
                "type": "array",
                "maxItems": 16,
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
