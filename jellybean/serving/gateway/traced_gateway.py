"""A gateway whose requests leave spans: one for each request, with an event for each attempt, and the answers' hops."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from jellybean.serving.gateway.fleet import Fleet
from jellybean.serving.gateway.gateway import MAX_ID_BYTES, Gateway
from jellybean.serving.gateway.in_flight import Attempt, Request
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Tensors
from jellybean_agent import (
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


class RequestTrace:
    """The span of a request in hand; `stamp` puts it on messages."""

    def __init__(self, span: Span, request_id: str) -> None:
        self.span, self._context, self._request_id = span, span_context(span), request_id

    @property
    def trace_id(self) -> str:
        return trace_id_of(self._context)

    def stamp(self, message: agent_pb2.Message) -> None:
        message.trace.CopyFrom(message_trace(self._context, self._request_id))


_TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)  # of the request that this task serves


class TracedGateway(Gateway):
    """Requests of the spool have a trace of their own for each try: whoever sent them may be long gone."""

    def __init__(self, spans: SpanFactory, *arguments: Any, **more: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **more)

    async def infer(
        self, inputs: Mapping[str, agent_pb2.Tensor], left_s: float | None, request_id: str = "", who: str = ""
    ) -> tuple[Outcome | None, Mapping[str, agent_pb2.Tensor]]:
        serving = super().infer(inputs, left_s, request_id, who)
        return await self._within("request", parent_context_of_call(), request_id[:MAX_ID_BYTES], serving)

    async def _serve_kept(self, inputs: Tensors) -> tuple[Outcome | None, Tensors]:
        return await self._within("kept request", None, "", super()._serve_kept(inputs))

    async def _within(
        self, name: str, parent: Context | None, request_id: str, serving: Any
    ) -> tuple[Outcome | None, Tensors]:
        about = {"workflow": self.view.name, "plan": self.view.hash[:12]}
        span = self._spans.begin(name, parent, about, kind=SpanKind.SERVER)
        if span is None:
            _TRACE.set(None)
            found: tuple[Outcome | None, Tensors] = await serving
            return found
        found_id = request_id or f"{span.get_span_context().trace_id:032x}"
        span.set_attribute("jellybean.request_id", found_id)
        _TRACE.set(RequestTrace(span, found_id))
        outcome: Outcome | None = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        try:
            found = await serving
            outcome = found[0]
            return found
        finally:
            if outcome is not None:
                span.set_attribute("rpc.grpc.status_code", int(outcome.status.value[0]))
                end_span_with_error(span, f"{outcome.status.name}: {outcome.reason}")
            else:
                span.end()

    def _try(self, request: Request) -> None:
        if request.trace is None:  # the first try is made by the task that serves the request
            request.trace = _TRACE.get()
        super()._try(request)
        if request.trace is not None and not request.attempts:
            request.trace.span.add_event("waits for a route")

    def _begin(self, request: Request, fleet: Fleet, route: int) -> None:
        before = set(request.attempts)
        super()._begin(request, fleet, route)
        if request.trace is not None:
            (key,) = request.attempts.keys() - before
            request.trace.span.add_event("attempt", {"jellybean.key": key, "jellybean.route": route})

    def _trace_id(self, request: Request | None) -> str:
        trace = request.trace if request is not None else _TRACE.get()
        return trace.trace_id if trace is not None else ""

    def _lost(self, attempt: Attempt, reason: str) -> None:
        if attempt.request.trace is not None:
            attempt.request.trace.span.add_event("attempt lost", {"jellybean.reason": reason[:500]})
        super()._lost(attempt, reason)

    def receive(self, message: agent_pb2.Message) -> None:
        if message.HasField("trace") and message.request_id in self._attempts:
            self._spans.hop(message, {"worker": "gateway"})
        super().receive(message)
