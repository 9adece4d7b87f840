"""Alert rules and dashboard as Kubernetes objects, for the operators of Prometheus and Grafana that watch for them."""

from __future__ import annotations

import json
from typing import Any

from jellybean.serving.top.alerts import alert_groups
from jellybean.serving.top.dashboard import dashboard

NAME = "jellybean"
_LABELS = {"app.kubernetes.io/name": "jellybean", "app.kubernetes.io/managed-by": "jellybean"}


def prometheus_rule() -> dict[str, Any]:
    """The alert rules as a PrometheusRule of the Prometheus operator: one for all deployments of a cluster."""
    meta = {"name": NAME, "labels": _LABELS}
    return {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": meta, "spec": alert_groups(),
    }  # fmt: skip


def dashboard_config_map() -> dict[str, Any]:
    """The dashboard as a ConfigMap with the label by which Grafana's Helm chart finds dashboards."""
    meta = {"name": f"{NAME}-dashboard", "labels": _LABELS | {"grafana_dashboard": "1"}}
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"jellybean.json": json.dumps(dashboard())},
    }  # fmt: skip
