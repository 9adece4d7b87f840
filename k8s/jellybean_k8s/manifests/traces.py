"""Where agents and gateway send their traces, as variables of OpenTelemetry's that their SDK reads."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.pod_settings import NAMESPACE_ENV, NODE_NAME_ENV, POD_NAME_ENV
from jellybean_k8s.objects import KubeObject

_SCHEMES = ("http", "https")
_HTTP_PORT = 4318  # OTLP over HTTP; 4317 and others are gRPC
HEADERS_KEY = "headers"  # key of the Secret
_FIELDS = {  # variable -> field of the pod, and the attribute of OpenTelemetry's semantic conventions
    POD_NAME_ENV: ("metadata.name", "k8s.pod.name"),
    NAMESPACE_ENV: ("metadata.namespace", "k8s.namespace.name"),
    NODE_NAME_ENV: ("spec.nodeName", "k8s.node.name"),
}


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where spans go. DeployError if nothing could be sent there.

    `endpoint`: `https://HOST:4318` (OTLP over HTTP) or `:4317` (gRPC). `ratio`: of requests whose client has not
    decided, the share that is traced. `secret`: its key `headers` has the headers of each export (`KEY=VALUE,...`).
    """

    endpoint: str
    ratio: float = 1.0
    secret: str | None = None

    def __post_init__(self) -> None:
        """Refuse an endpoint without a port, and a secret that would be sent in the clear."""
        port = trace_port(self.endpoint)
        if not 0.0 <= self.ratio <= 1.0:
            raise DeployError(f"traces.ratio is {self.ratio:g}, not a share from 0 to 1")
        if self.secret is not None and not self.endpoint.startswith("https://"):
            hint = f"https://{urllib.parse.urlsplit(self.endpoint).hostname}:{port}"
            raise DeployError(f"traces: {self.endpoint} with a secret: only https:// keeps it secret: write {hint}")

    @property
    def port(self) -> int:
        """The collector's port."""
        return trace_port(self.endpoint)


def trace_port(endpoint: str) -> int:
    """The port of a collector's URL. DeployError if it is no URL with host and port."""
    example = "for example https://collector:4318 (OTLP over HTTP) or https://collector:4317 (gRPC)"
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.username is not None or parts.query:
        raise DeployError(f"traces.endpoint: {endpoint} is not http(s)://HOST:PORT: {example}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not port:
        raise DeployError(f"traces.endpoint: {endpoint} has no port from 1 to 65535: {example}")
    return port


def with_trace_env(env: Iterable[KubeObject], traces: TraceSettings | None) -> list[KubeObject]:
    """A container's variables, and those that have its process send traces, each once."""
    known = {item["name"]: item for item in env}
    if traces is None:
        return list(known.values())
    for name, (field, _) in _FIELDS.items():
        known[name] = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
    attributes = ",".join(f"{attribute}=$({name})" for name, (_, attribute) in _FIELDS.items())
    values = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": traces.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf" if traces.port == _HTTP_PORT else "grpc",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": f"{traces.ratio:g}",
        "OTEL_RESOURCE_ATTRIBUTES": attributes,
    }
    known |= {name: {"name": name, "value": value} for name, value in values.items()}
    if traces.secret is not None:
        name, key = "OTEL_EXPORTER_OTLP_HEADERS", {"name": traces.secret, "key": HEADERS_KEY}
        known[name] = {"name": name, "valueFrom": {"secretKeyRef": key}}
    return list(known.values())
