"""Spans of requests by OpenTelemetry, exported as OTLP. Imported only where traces are configured (`tracing.py`).

The gateway's span of a request is the root, or a child of the client's span. Messages carry the context of the span
that sent them: the receiver records a child `hop` for the transfer, and its children `queue` and `compute`; messages
sent by a run are children of its `compute`. Times of different machines are by their own clocks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jellybean_protos.agent.v1 import agent_pb2

CALL_TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("carrier")  # the W3C trace headers of the present call
TRACE_HEADER_NAMES = ("traceparent", "tracestate")
_MAX_LINKS = 32
_MAX_WAY_NS = 3600 * 10**9  # longest plausible transfer time; above it the clocks of the machines must disagree
_FLUSH_MS = 2000
_PROPAGATOR = TraceContextTextMapPropagator()
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class SpanFactory:
    """Makes the spans of one process, and exports them from `start` to `close`."""

    def __init__(self, service: str, instance: str, workflow: str, environment: Mapping[str, str]) -> None:
        resource = {"service.instance.id": instance, "service.namespace": workflow}
        if not environment.get("OTEL_SERVICE_NAME"):
            resource["service.name"] = service
        self._provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self._environment = environment
        self._tracer = self._provider.get_tracer("jellybean")

    def start(self) -> Self:
        """Start exporting, in a thread of OpenTelemetry's."""
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(self._environment)))
        return self

    def begin(
        self,
        name: str,
        parent: Context | None,
        attributes: Mapping[str, str | int],
        *,
        at_ns: int | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Context] = (),
    ) -> Span | None:
        """Begin a span; a root span if `parent` is None. Returns None if the trace is not sampled."""
        span = self._tracer.start_span(
            name,
            parent if parent is not None else Context(),
            kind,
            {f"jellybean.{key}": value for key, value in attributes.items()},
            [Link(trace.get_current_span(link).get_span_context()) for link in links[:_MAX_LINKS]],
            at_ns,
        )
        return span if isinstance(span, Span) and span.is_recording() else None

    def hop(self, wire: agent_pb2.Message, attributes: Mapping[str, str | int]) -> tuple[Context, int] | None:
        """Record the `hop` span of a message that has just arrived; returns (its context, its end in ns since epoch).

        None when the message is not traced.
        """
        parent = _PROPAGATOR.extract({"traceparent": wire.trace.parent, "tracestate": wire.trace.state}, Context())
        now_ns = time.time_ns()
        if not trace.get_current_span(parent).get_span_context().is_valid:
            return None
        sent_ns = min(max(wire.trace.sent_unix_ns, now_ns - _MAX_WAY_NS), now_ns)
        own = {"request_id": wire.trace.request_id, "upstream": wire.upstream, **attributes}
        span = self.begin("hop", parent, own, at_ns=sent_ns, kind=SpanKind.CONSUMER)
        if span is None:
            return None
        span.end(now_ns)
        return span_context(span), now_ns

    def close(self) -> None:
        """Export the remaining spans, and stop. Blocks for up to two seconds."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def store_trace_headers(call: Any) -> None:
    """Store the W3C trace headers of a call in `CALL_TRACE_HEADERS`."""
    CALL_TRACE_HEADERS.set(
        {key: str(value) for key, value in call.invocation_metadata() or () if key in TRACE_HEADER_NAMES}
    )


def parent_context_of_call() -> Context:
    """Context of the client's span for the present call; empty where it sent none."""
    return _PROPAGATOR.extract(CALL_TRACE_HEADERS.get({}), Context())


def span_context(span: Span) -> Context:
    return trace.set_span_in_context(span, Context())


def trace_id_of(context: Context) -> str:
    return f"{trace.get_current_span(context).get_span_context().trace_id:032x}"


def message_trace(context: Context, request_id: str) -> agent_pb2.Trace:
    """The trace context for a message that is sent now."""
    found: dict[str, str] = {}
    _PROPAGATOR.inject(found, context)
    return agent_pb2.Trace(
        parent=found["traceparent"],
        state=found.get("tracestate", ""),
        request_id=request_id,
        sent_unix_ns=time.time_ns(),
    )


def end_span_with_error(span: Span, reason: str) -> None:
    """End a span with status ERROR."""
    span.set_status(StatusCode.ERROR, reason[:500])
    span.end()


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), "grpc")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    return GrpcExporter()
