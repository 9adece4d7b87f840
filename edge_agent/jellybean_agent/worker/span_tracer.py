"""Records the spans `hop`, `queue` and `compute` of each request. Imported only where traces are configured.

A span's context travels inside the payloads, which the brain does not look into.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context

from jellybean_agent.brain.messages import EdgeMessage, Payload, WorkItem
from jellybean_agent.brain.plan_view import OperatorView, PlanView
from jellybean_agent.errors import AgentError
from jellybean_agent.execution.executor import Executor
from jellybean_agent.telemetry.spans import SpanFactory, end_span_with_error, message_trace, span_context, trace_id_of
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.transport.message_wire import Data, read_message, write_message
from jellybean_agent.worker.run_outputs import RunDone, RunOutputs, run_items
from jellybean_protos.agent.v1 import agent_pb2

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span

_REMEMBERED_TRACE_IDS = 4096


@dataclass(slots=True)
class _TracedTensor:
    """A tensor, the context of the span of its message, and when it was queued (ns since the epoch)."""

    tensor: Array
    context: Context
    request_id: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class _TracedOutputs:
    """Outputs of a run whose payloads carry the context of the run's span."""

    outputs: RunOutputs
    context: Context
    request_id: str
    done_ns: int

    @property
    def by_downstream(self) -> Mapping[str, Array]:
        return self.outputs.by_downstream

    def rows(self, downstream: str) -> int:
        return self.outputs.rows(downstream)

    def take(self, downstream: str, row: int | None) -> Payload:
        return _TracedTensor(self.outputs.take(downstream, row), self.context, self.request_id, self.done_ns)


class SpanTracer:
    """Spans of every request whose messages carry a trace context. A fan-out without children ends a trace."""

    needs_blocking_runs = True

    def __init__(self, spans: SpanFactory, view: PlanView, worker: str) -> None:
        self._spans, self._view, self._worker = spans, view, worker
        self._trace_ids: OrderedDict[str, str] = OrderedDict()  # by request, the most recent ones

    def read_message(
        self, view: PlanView, operators: Sequence[str], wire: agent_pb2.Message, now_s: float, data: Data = b""
    ) -> EdgeMessage:
        """Read a message and record its `hop` span."""
        message = read_message(view, operators, wire, now_s, data)
        if message.payload is None or not wire.HasField("trace"):
            return message
        if (hop := self._spans.hop(wire, self._attributes(message.downstream))) is None:
            return message
        context, now_ns = hop
        self._trace_ids[wire.request_id] = trace_id_of(context)
        if len(self._trace_ids) > _REMEMBERED_TRACE_IDS:
            self._trace_ids.popitem(last=False)
        return replace(message, payload=_TracedTensor(message.payload, context, wire.trace.request_id, now_ns))

    def trace_id(self, request: str) -> str:
        return self._trace_ids.get(request, "")

    def run_items(self, operator: OperatorView, executor: Executor, items: Sequence[WorkItem]) -> RunDone:
        """Run the items and record the `queue` and `compute` spans of each."""
        began_ns = time.time_ns()
        inputs = [_traced_inputs(item) for item in items]
        spans = [self._begin_compute(operator.name, traced, began_ns) if traced else None for traced in inputs]
        plain = [replace(item, inputs=_plain_inputs(item)) for item in items]
        try:
            done = run_items(operator, executor, plain)
        except AgentError as error:
            for span, traced in zip(spans, inputs, strict=True):
                if span is not None:
                    end_span_with_error(span, str(error))
                for tensor in traced:  # an item of a failed batch is queued again
                    tensor.since_ns = time.time_ns()
            raise
        done_ns = time.time_ns()
        size = max(done.sizes)
        outputs: list[RunOutputs] = []
        for span, traced, of_item in zip(spans, inputs, done.outputs, strict=True):
            if span is None:
                outputs.append(of_item)
                continue
            span.set_attribute("jellybean.batch_size", size)
            span.end(done_ns)
            outputs.append(_TracedOutputs(of_item, span_context(span), traced[0].request_id, done_ns))
        return replace(done, outputs=outputs)

    def _begin_compute(self, operator: str, traced: Sequence[_TracedTensor], began_ns: int) -> Span | None:
        """Record one item's `queue` span and begin its `compute` span, as children of its last input's span."""
        last, *others = sorted(traced, key=lambda tensor: -tensor.since_ns)
        links = [other.context for other in others]
        attributes = {"request_id": last.request_id, **self._attributes(operator)}
        queued = self._spans.begin("queue", last.context, attributes, at_ns=min(last.since_ns, began_ns), links=links)
        if queued is not None:
            queued.end(began_ns)
        return self._spans.begin("compute", last.context, attributes, at_ns=began_ns, links=links)

    def write_message(self, plan: str, message: EdgeMessage) -> tuple[agent_pb2.Message, Data]:
        """Write a message with the context of the span that produced it."""
        traced = message.payload
        if not isinstance(traced, _TracedTensor):
            return write_message(plan, message)
        wire, data = write_message(plan, replace(message, payload=traced.tensor))
        wire.trace.CopyFrom(message_trace(traced.context, traced.request_id))
        return wire, data

    def _attributes(self, operator: str) -> dict[str, str | int]:
        variant = self._view.operators[operator].variant
        return {"operator": operator, "variant": variant, "worker": self._worker}


def _traced_inputs(item: WorkItem) -> list[_TracedTensor]:
    """An item's inputs that carry a context, children of a gather included."""
    values = (part for value in item.inputs for part in (value if isinstance(value, tuple) else (value,)))
    return [value for value in values if isinstance(value, _TracedTensor)]


def _plain_inputs(item: WorkItem) -> tuple[Any, ...]:
    return tuple(
        tuple(map(_plain_tensor, value)) if isinstance(value, tuple) else _plain_tensor(value) for value in item.inputs
    )


def _plain_tensor(value: Payload) -> Payload:
    return value.tensor if isinstance(value, _TracedTensor) else value
