"""When traces are made, and the spans of one process: parents, times, and what is not sampled."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jellybean_agent import (
    CALL_TRACE_HEADERS,
    SpanFactory,
    end_span_with_error,
    make_span_factory,
    message_trace,
    parent_context_of_call,
    span_context,
    store_trace_headers,
    trace_id_of,
)
from jellybean_agent.telemetry import spans as spans_module
from jellybean_agent.telemetry.tracing import is_traced
from jellybean_protos.agent.v1 import agent_pb2

PARENT = f"00-{5:032x}-{7:016x}-01"
HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize(
    ("environment", "traced"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "no"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_traces_are_made_where_they_are_configured(environment: dict[str, str], traced: bool) -> None:
    assert is_traced(environment) == traced
    if not traced:
        assert make_span_factory("agent", "a", "w", environment) is None


def test_without_opentelemetry_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jellybean_agent.telemetry.spans", None)
    assert make_span_factory("agent", "a", "w", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
    assert "nothing is traced" in caplog.text
    assert "[otel]'" in caplog.text


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    monkeypatch.setattr(spans_module, "_exporter", lambda _: found)
    yield found


def closed(factory: SpanFactory, exported: InMemorySpanExporter) -> list[Any]:
    factory.close()
    return list(exported.get_finished_spans())


def test_a_process_is_named_in_its_spans(exported: InMemorySpanExporter) -> None:
    for environment, name in (({}, "jellybean-agent"), ({"OTEL_SERVICE_NAME": "mine"}, None)):
        factory = SpanFactory("jellybean-agent", "edge-1", "tiny", environment).start()
        span = factory.begin("one", None, {"operator": "add", "size": 3}, at_ns=1000)
        assert span is not None
        span.end(2000)
        found = closed(factory, exported)[-1]
        assert found.resource.attributes["service.instance.id"] == "edge-1"
        assert found.resource.attributes["service.namespace"] == "tiny"
        if name is not None:
            assert found.resource.attributes["service.name"] == name
        assert dict(found.attributes) == {"jellybean.operator": "add", "jellybean.size": 3}
        assert (found.start_time, found.end_time, found.parent) == (1000, 2000, None)


@pytest.mark.parametrize(
    ("ago_ns", "took_ns"), [(10**9, 10**9), (2 * HOUR_NS, HOUR_NS), (-(10**12), 0), (None, HOUR_NS)]
)
def test_a_hop_begins_when_its_message_was_sent(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, ago_ns: int | None, took_ns: int
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(spans_module.time, "time_ns", lambda: now_ns)
    factory = SpanFactory("jellybean-agent", "edge-1", "tiny", {}).start()
    wire = agent_pb2.Message(request_id="r", upstream="x")
    wire.trace.parent, wire.trace.request_id = PARENT, "client's"
    wire.trace.sent_unix_ns = 0 if ago_ns is None else now_ns - ago_ns
    hop = factory.hop(wire, {"operator": "add"})
    assert hop is not None
    context, end_ns = hop
    assert (trace_id_of(context), end_ns) == (f"{5:032x}", now_ns)
    (found,) = closed(factory, exported)
    assert (found.name, found.kind, found.parent.span_id) == ("hop", SpanKind.CONSUMER, 7)
    assert (found.end_time - found.start_time, found.end_time) == (took_ns, now_ns)
    assert dict(found.attributes) == {
        "jellybean.request_id": "client's",
        "jellybean.upstream": "x",
        "jellybean.operator": "add",
    }
    assert trace.get_current_span(context).get_span_context().span_id == found.context.span_id


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{0:032x}-{7:016x}-01", f"00-{5:032x}-{7:016x}-00"])
def test_messages_that_are_not_traced_have_no_hop(exported: InMemorySpanExporter, parent: str) -> None:
    factory = SpanFactory("jellybean-agent", "edge-1", "tiny", {}).start()
    wire = agent_pb2.Message(request_id="r")
    wire.trace.parent = parent
    assert factory.hop(wire, {}) is None
    assert closed(factory, exported) == []


def test_a_message_carries_the_span_that_sent_it(exported: InMemorySpanExporter) -> None:
    factory = SpanFactory("jellybean-agent", "edge-1", "tiny", {}).start()
    parents = [factory.begin("parent", None, {}) for _ in range(40)]
    span = factory.begin("run", None, {}, links=[span_context(parent) for parent in parents if parent is not None])
    assert span is not None
    before_ns = time.time_ns()
    found = message_trace(span_context(span), "client's")
    assert found.parent.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")
    assert (found.request_id, found.state) == ("client's", "")
    assert before_ns <= found.sent_unix_ns <= time.time_ns()
    end_span_with_error(span, "it failed")
    (ended,) = closed(factory, exported)
    assert (ended.status.status_code, ended.status.description) == (StatusCode.ERROR, "it failed")
    assert len(ended.links) == 32


class Call:
    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata or None


def test_the_clients_span_is_the_parent_of_a_call() -> None:
    store_trace_headers(Call(("traceparent", PARENT), ("other", "x")))
    assert CALL_TRACE_HEADERS.get() == {"traceparent": PARENT}
    assert trace_id_of(parent_context_of_call()) == f"{5:032x}"
    store_trace_headers(Call())
    assert trace_id_of(parent_context_of_call()) == "0" * 32
    assert isinstance(parent_context_of_call(), Context)
