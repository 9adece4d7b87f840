"""Traces of a gateway's requests by OpenTelemetry: a span per request with an event per attempt, and answers' hops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind

from jellybean.serving.gateway.tracing import NOT_TRACED, RequestTrace
from jellybean.serving.outcomes import Outcome
from jellybean_agent import (
    PlanView,
    SpanFactory,
    end_span_with_error,
    message_trace,
    parent_context_of_call,
    span_context,
    trace_id_of,
)
from jellybean_protos.agent.v1 import agent_pb2

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: Span, request_id: str) -> None:
        self._span, self._context, self._request_id = span, span_context(span), request_id

    @property
    def trace_id(self) -> str:
        return trace_id_of(self._context)

    def stamp(self, message: agent_pb2.Message) -> None:
        message.trace.CopyFrom(message_trace(self._context, self._request_id))

    def event(self, name: str, attributes: Mapping[str, str | int]) -> None:
        self._span.add_event(name, {f"jellybean.{key}": value for key, value in attributes.items()})

    def end(self, outcome: Outcome | None) -> None:
        if outcome is None:
            self._span.end()
            return
        self._span.set_attribute("rpc.grpc.status_code", int(outcome.status.value[0]))
        end_span_with_error(self._span, f"{outcome.status.name}: {outcome.reason}")


class SpanTracer:
    """Makes spans with `spans`. A request without an id of its client's is known by its trace id."""

    def __init__(self, spans: SpanFactory) -> None:
        self._spans = spans

    def begin(self, name: str, view: PlanView, request_id: str, *, has_client: bool) -> RequestTrace:
        attributes = {"workflow": view.served_name, "plan": view.hash[:12]}
        parent = parent_context_of_call() if has_client else None
        span = self._spans.begin(name, parent, attributes, kind=SpanKind.SERVER)
        if span is None:
            return NOT_TRACED
        request_id = request_id or f"{span.get_span_context().trace_id:032x}"
        span.set_attribute("jellybean.request_id", request_id)
        return RequestSpan(span, request_id)

    def received(self, message: agent_pb2.Message, trace: RequestTrace) -> None:
        if trace.trace_id and message.HasField("trace") and message.trace.parent.split("-")[1:2] == [trace.trace_id]:
            self._spans.hop(message, {"worker": "gateway"})
