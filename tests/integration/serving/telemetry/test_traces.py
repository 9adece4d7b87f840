"""Traces of real requests over two agents, as a real OTLP receiver gets them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from jellybean.serving import Client, RequestError
from jellybean_solver import Link
from tests.support.ports import free_port
from tests.support.tiny_models import chain

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WAY_S = 0.05
ONES = {"x": np.ones((1, 4), np.float32)}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span with the service that it is of."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def Export(self, request, _context):
        for resource in request.resource_spans:
            about = attributes(resource.resource)
            for scope in resource.scope_spans:
                self.spans += [
                    (f"{about['service.name']}/{about['service.instance.id']}", span) for span in scope.spans
                ]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace: str, number: int) -> list[tuple[str, Span]]:
        """The spans of a trace, once there are so many."""
        until = time.monotonic() + 60.0
        while len(found := [item for item in list(self.spans) if item[1].trace_id.hex() == trace]) < number:
            assert time.monotonic() < until, [(service, span.name) for service, span in found]
            time.sleep(0.02)
        return found


def attributes(of) -> dict[str, str | int]:
    return {item.key: item.value.string_value or item.value.int_value for item in of.attributes}


def tree(spans: list[tuple[str, Span]], parent: str) -> list:
    """Nested by parent, each as who made it, its name and its operator."""
    return [
        (
            f"{service} {span.name} {attributes(span).get('jellybean.operator', '')}".strip(),
            tree(spans, span.span_id.hex()),
        )
        for service, span in sorted(spans, key=lambda item: item[1].start_time_unix_nano)
        if span.parent_span_id.hex() == parent
    ]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    found = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{found.port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield found
    found.server.stop(None)


def test_one_request_is_one_tree_over_gateway_and_agents(tmp_path: Path, start, receiver: Receiver) -> None:
    port = free_port()
    links = [Link("edge", "cloud", 0.0, None, WAY_S)]
    running = start(tmp_path, chain(tmp_path, links=links), http_port=port)
    with Client(running.gateway_address) as client:
        client.infer(ONES, request_id="mine", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        with pytest.raises(RequestError):
            client.infer({"y": ONES["x"]}, headers={"traceparent": f"00-{TRACE[::-1]}-{PARENT}-01"})
        client.infer(ONES, headers={"traceparent": f"00-{TRACE[1:]}0-{PARENT}-00"})  # the client does not sample it

    spans = receiver.of(TRACE, 8)
    edge, cloud = "jellybean-agent/edge-1", "jellybean-agent/cloud-1"
    answer = ("jellybean-gateway/gateway hop", [])
    triple = [(f"{cloud} queue triple", []), (f"{cloud} compute triple", [answer])]
    double = [(f"{edge} queue double", []), (f"{edge} compute double", [(f"{cloud} hop triple", triple)])]
    assert tree(spans, PARENT) == [("jellybean-gateway/gateway request", [(f"{edge} hop double", double)])]
    assert len(spans) == 8
    named = {f"{span.name} {attributes(span).get('jellybean.operator', '')}": span for _, span in spans}
    assert attributes(named["compute triple"]) == {
        "jellybean.request_id": "mine",
        "jellybean.operator": "triple",
        "jellybean.variant": "only",
        "jellybean.worker": "cloud-1",
        "jellybean.batch_size": 1,
    }
    assert {attributes(span)["jellybean.request_id"] for _, span in spans} == {"mine"}
    assert [event.name for event in named["request "].events] == ["attempt"]
    crossed = named["hop triple"]
    assert (crossed.end_time_unix_nano - crossed.start_time_unix_nano) / 1e9 >= WAY_S
    for service, span in spans:
        assert named["request "].start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano, service
    assert named["request "].end_time_unix_nano >= named["compute triple"].end_time_unix_nano

    (refused,) = receiver.of(TRACE[::-1], 1)
    assert refused[1].status.code == 2
    assert "INVALID_ARGUMENT" in refused[1].status.message

    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/tiny/infer",
        json.dumps(body).encode(),
        {"traceparent": f"00-{TRACE[2:]}00-{PARENT}-01"},
    )
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    assert tree(receiver.of(f"{TRACE[2:]}00", 8), PARENT)[0][0] == "jellybean-gateway/gateway request"
    assert not [span for _, span in receiver.spans if span.trace_id.hex() == f"{TRACE[1:]}0"]


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, jellybean.serving.gateway_main, jellybean.serving.http.inference_http, jellybean_agent.command\n"
        "from jellybean_agent.telemetry.tracing import make_span_factory\n"
        "assert make_span_factory('a', 'b', 'c', {}) is None\n"
        "off = {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x:1', 'OTEL_SDK_DISABLED': 'true'}\n"
        "assert make_span_factory('a', 'b', 'c', off) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
