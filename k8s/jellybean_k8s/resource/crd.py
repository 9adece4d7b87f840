"""The custom resource Workflow: names, status and CustomResourceDefinition. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX

Schema = dict[str, Any]

CRD_GROUP, CRD_VERSION, CRD_KIND, CRD_PLURAL = OWN_PREFIX, "v1alpha1", "Workflow", "workflows"
CRD_API_VERSION = f"{CRD_GROUP}/{CRD_VERSION}"
CRD_NAME = f"{CRD_PLURAL}.{CRD_GROUP}"
SHORT_NAME = "jb"
CONDITION_READY, CONDITION_PLANNED, CONDITION_DEPLOYED = "Ready", "Planned", "Deployed"
CONDITION_PROGRESSING, CONDITION_RECONCILING = "Progressing", "Reconciling"  # the same, for people and for kstatus
CONDITION_STALLED, CONDITION_DEGRADED = "Stalled", "Degraded"
CONDITION_TYPES = (
    CONDITION_PLANNED,
    CONDITION_DEPLOYED,
    CONDITION_READY,
    CONDITION_PROGRESSING,
    CONDITION_RECONCILING,
    CONDITION_STALLED,
    CONDITION_DEGRADED,
)
RETRY_ANNOTATION = f"{OWN_PREFIX}/retry"  # whose change has a failed deployment tried again
_MAX_WORD_LENGTH, _MAX_TEXT_LENGTH = 63, 32_768

_COLUMNS = (  # header, path, type
    ("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
    ("Reason", '.status.conditions[?(@.type=="Ready")].reason', "string"),
    ("Plan", ".status.plan", "string"),
    ("Planned/s", ".status.requestsPerSecond", "number"),
    ("Measured/s", ".status.measured.requestsPerSecond", "number"),
    ("p99 target s", ".status.latencyP99TargetSeconds", "number"),
    ("p99 s", ".status.measured.latencyP99Seconds", "number"),
    ("Planned USD/h", ".status.costUsdPerHour", "number"),
    ("Measured USD/h", ".status.measured.costUsdPerHour", "number"),
    ("Accuracy", ".status.accuracy", "number"),
    ("Gap", ".status.gap", "string"),
    ("Age", ".metadata.creationTimestamp", "date"),
)


def crd(spec: Mapping[str, Any], rules: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The CustomResourceDefinition with the given schema of `spec`; `rules` (CEL) apply to the whole object."""
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
        "name": CRD_VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": name, "jsonPath": path, "type": kind} for name, path, kind in _COLUMNS],
    }
    names = {"kind": CRD_KIND, "listKind": f"{CRD_KIND}List", "plural": CRD_PLURAL, "singular": CRD_KIND.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": CRD_NAME,
            "labels": {f"{APP_PREFIX}/name": "jellybean", f"{APP_PREFIX}/managed-by": FIELD_MANAGER},
        },
        "spec": {
            "group": CRD_GROUP,
            "scope": "Namespaced",
            "names": {**names, "shortNames": [SHORT_NAME], "categories": ["jellybean"]},
            "versions": [version],
        },
    }


def _measured() -> Schema:
    return {
        "type": "object",
        "description": "By the gateway, in the last minute; absent while it does not say.",
        "properties": {
            "requestsPerSecond": {"type": "number", "description": "Requests that arrived, without client errors."},
            "latencyP99Seconds": {
                "type": "number",
                "description": "Of several workflows the highest; absent: no answer.",
            },
            "costUsdPerHour": {"type": "number", "description": "Workers, and bytes over links that are known."},
            "at": {"type": "string", "format": "date-time", "description": "End of the time that was measured."},
        },
    }


def _status() -> Schema:
    text = {"type": "string", "maxLength": _MAX_WORD_LENGTH}
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "lastTransitionTime"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": {"type": "string", "maxLength": _MAX_TEXT_LENGTH},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    return {
        "type": "object",
        "description": "Written by the operator.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "name": {**text, "description": "Name of the deployment, and of its client Service."},
            "plan": {**text, "description": "Hash of the latest plan."},
            "served": {**text, "description": "Short hash of the plan that serves clients, as in object names."},
            "failed": {
                **text,
                "description": "Hash of spec, fleet and profiles whose plan did not become ready: not tried again.",
            },
            "revision": {"type": "integer", "format": "int64", "description": "Revision that serves clients."},
            "requestsPerSecond": {"type": "number", "description": "Rate that the plan was made for."},
            "latencyP99TargetSeconds": {"type": "number", "description": "Absent: there is none."},
            "costUsdPerHour": {"type": "number", "description": "Predicted."},
            "measured": _measured(),
            "accuracy": {"type": "number", "description": "Predicted, percent."},
            "gap": {**text, "description": "Proven bound on how much the plan costs above the optimum."},
            "fleet": {
                "type": "string",
                "maxLength": _MAX_TEXT_LENGTH,
                "description": "The fleet that was planned for.",
            },
            "conditions": {
                "type": "array",
                "maxItems": 16,
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
