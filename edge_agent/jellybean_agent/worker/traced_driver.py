"""A driver whose requests leave spans. Their contexts travel inside payloads, which the brain does not look into."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context

from jellybean_agent.brain.messages import EdgeMessage, Payload, RunOperator, WorkItem
from jellybean_agent.errors import AgentError
from jellybean_agent.telemetry.spans import SpanFactory, end_span_with_error, message_trace, span_context, trace_id_of
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.transport.message_wire import Data
from jellybean_agent.worker.driver import Driver
from jellybean_agent.worker.run_outputs import Done, RunOutputs
from jellybean_protos.agent.v1 import agent_pb2

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span

_REMEMBERED = 4096  # requests


@dataclass(slots=True)
class _Traced:
    """A tensor, the span that it came by, and since when it waits (ns since the epoch)."""

    tensor: Array
    context: Context
    request_id: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class _TracedOutputs:
    """Outputs of a run, each part of which knows the run's span."""

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
        return _Traced(self.outputs.take(downstream, row), self.context, self.request_id, self.done_ns)


class TracedDriver(Driver):
    """Spans `hop`, `queue` and `compute` of every request that comes with a context. A fan-out of nothing ends them."""

    begins_runs = False  # a span is of a run that is waited for

    def __init__(self, spans: SpanFactory, *arguments: Any) -> None:
        self._spans = spans
        self._trace_ids: OrderedDict[str, str] = OrderedDict()  # of the last requests, for the log
        super().__init__(*arguments)

    def _read(self, wire: agent_pb2.Message, data: Data) -> EdgeMessage:
        message = super()._read(wire, data)
        if message.payload is None or not wire.HasField("trace"):
            return message
        if (found := self._spans.hop(wire, self._about(message.downstream))) is None:
            return message
        self._trace_ids[wire.request_id] = trace_id_of(found[0])
        if len(self._trace_ids) > _REMEMBERED:
            self._trace_ids.popitem(last=False)
        return replace(message, payload=_Traced(message.payload, found[0], wire.trace.request_id, found[1]))

    def _trace_id(self, request: str) -> str:
        return self._trace_ids.get(request, "")

    def _perform(self, run: RunOperator) -> Done:
        began_ns = time.time_ns()
        inputs = [_traced(item) for item in run.items]
        spans = [self._compute(run, traced, began_ns) if traced else None for traced in inputs]
        plain = replace(run, items=tuple(replace(item, inputs=_tensors(item)) for item in run.items))
        try:
            done = super()._perform(plain)
        except AgentError as error:
            for span, traced in zip(spans, inputs, strict=True):
                if span is not None:
                    end_span_with_error(span, str(error))
                for one in traced:  # it may run again, alone
                    one.since_ns = time.time_ns()
            raise
        done_ns = time.time_ns()
        size = max(done.sizes)
        outputs: list[RunOutputs] = []
        for span, traced, found in zip(spans, inputs, done.outputs, strict=True):
            if span is None:
                outputs.append(found)
                continue
            span.set_attribute("jellybean.batch_size", size)
            span.end(done_ns)
            outputs.append(_TracedOutputs(found, span_context(span), traced[0].request_id, done_ns))
        return replace(done, outputs=outputs)

    def _compute(self, run: RunOperator, traced: Sequence[_Traced], began_ns: int) -> Span | None:
        """The span of a run, as far as one request goes, after that of its time in the queue."""
        last, *others = sorted(traced, key=lambda one: -one.since_ns)
        links = [other.context for other in others]
        about = {"request_id": last.request_id, **self._about(run.operator)}
        queued = self._spans.begin("queue", last.context, about, at_ns=min(last.since_ns, began_ns), links=links)
        if queued is not None:
            queued.end(began_ns)
        return self._spans.begin("compute", last.context, about, at_ns=began_ns, links=links)

    def _write(self, message: EdgeMessage) -> tuple[agent_pb2.Message, Data]:
        traced = message.payload
        if not isinstance(traced, _Traced):
            return super()._write(message)
        wire, data = super()._write(replace(message, payload=traced.tensor))
        wire.trace.CopyFrom(message_trace(traced.context, traced.request_id))
        return wire, data

    def _about(self, operator: str) -> dict[str, str | int]:
        variant = self._view.operators[operator].variant
        return {"operator": operator, "variant": variant, "worker": self._worker.name}


def _traced(item: WorkItem) -> list[_Traced]:
    """All of an item's inputs that came with a context, children too."""
    flat = (one for value in item.inputs for one in (value if isinstance(value, tuple) else (value,)))
    return [one for one in flat if isinstance(one, _Traced)]


def _tensors(item: WorkItem) -> tuple[Any, ...]:
    return tuple(tuple(map(_tensor, value)) if isinstance(value, tuple) else _tensor(value) for value in item.inputs)


def _tensor(value: Payload) -> Payload:
    return value.tensor if isinstance(value, _Traced) else value
