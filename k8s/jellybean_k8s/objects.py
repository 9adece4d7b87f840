"""Types of Kubernetes objects, as parsed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KubeObject = dict[str, Any]
KubeObjectView = Mapping[str, Any]  # read only


def kube_object(api: str, kind: str, name: str, labels: dict[str, str], **rest: Any) -> KubeObject:
    """An object without a namespace."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}


CLIENT_FAMILIES = "PreferDualStack"  # of Services for clients elsewhere: of IPv4 and IPv6 where the cluster has both


def service_port(name: str, port: int) -> KubeObject:
    """A TCP port of a Service, the same as of its pods."""
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
