"""Spans of a process with a rendered pod's variables arrive at a collector, and say in which pod they were made."""

from __future__ import annotations

import dataclasses
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jellybean_k8s import TraceSettings, deployed_plan, render
from jellybean_k8s.manifests import traces
from tests.k8s_target import PLAN, SETTINGS
from tests.support.skips import NotInstalled

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NotInstalled.OPENTELEMETRY)
FIELDS = {"metadata.name": "digits-1234-cloud-1", "metadata.namespace": "shop", "spec.nodeName": "box-7"}
PROGRAM = """\
import os
from jellybean_agent.telemetry.tracing import make_span_factory
factory = make_span_factory("jellybean-agent", "cloud-1", "digits", os.environ)
for _ in range(400):
    if (span := factory.begin("compute", None, {})) is not None:
        span.end()
factory.close()
"""


@pytest.fixture
def collector() -> Iterator[tuple[int, list[tuple[str, str, bytes]]]]:
    """An OTLP collector over HTTP: its port, and path, `authorization` and body of each export."""
    found: list[tuple[str, str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append((self.path, self.headers.get("authorization", ""), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, found
        server.shutdown()
        thread.join()


def environment(container: Any) -> dict[str, str]:
    """What a kubelet makes of a container's variables."""
    found: dict[str, str] = {}
    for item in container["env"]:
        source = item.get("valueFrom", {})
        if "fieldRef" in source:
            found[item["name"]] = FIELDS.get(source["fieldRef"]["fieldPath"], "1")
        elif "secretKeyRef" in source:
            found[item["name"]] = "authorization=Bearer x"
        else:
            text = item["value"]
            for name, value in found.items():
                text = text.replace(f"$({name})", value)
            found[item["name"]] = text
    return found


def test_spans_of_a_pod_arrive_and_say_where_they_were_made(
    collector: tuple[int, list[tuple[str, str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    port, exports = collector
    monkeypatch.setattr(traces, "_HTTP_PORT", port)
    settings = dataclasses.replace(SETTINGS, traces=TraceSettings(f"http://127.0.0.1:{port}", 0.5))
    objects = render(deployed_plan(PLAN, settings))
    templates = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "StatefulSet"]
    own = environment(templates[-1]["containers"][0])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", PROGRAM], env=clean | own, check=True, timeout=60)
    assert {path for path, _, _ in exports} == {"/v1/traces"}
    messages = [ExportTraceServiceRequest.FromString(body) for _, _, body in exports]
    resources = [resource for message in messages for resource in message.resource_spans]
    spans = sum(len(scope.spans) for resource in resources for scope in resource.scope_spans)
    assert 120 < spans < 280  # half of 400, within eight standard deviations
    attributes = {one.key: one.value.string_value for one in resources[0].resource.attributes}
    wanted = {"k8s.pod.name": "digits-1234-cloud-1", "k8s.namespace.name": "shop", "k8s.node.name": "box-7"}
    wanted |= {"service.name": "jellybean-agent", "service.instance.id": "cloud-1", "service.namespace": "digits"}
    assert wanted.items() <= attributes.items()
