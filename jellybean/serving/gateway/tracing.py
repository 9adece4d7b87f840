"""What a gateway calls to trace its requests; without a trace exporter these calls do nothing.

`spans.py` implements it with OpenTelemetry and is imported only where traces are configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jellybean.serving.outcomes import Outcome
from jellybean_agent import PlanView
from jellybean_protos.agent.v1 import agent_pb2


class RequestTrace(Protocol):
    """The trace of one request."""

    @property
    def trace_id(self) -> str:
        """Hexadecimal; empty where the request is not traced."""
        ...

    def stamp(self, message: agent_pb2.Message) -> None:
        """Put the trace context on a message to a worker."""
        ...

    def event(self, name: str, attributes: Mapping[str, str | int]) -> None:
        """Record that something happened to the request now."""
        ...

    def end(self, outcome: Outcome | None) -> None:
        """End the span; `outcome`: why there is no answer, None where there is one."""
        ...


class Tracer(Protocol):
    """Makes the traces of a gateway's requests."""

    def begin(self, name: str, view: PlanView, request_id: str, *, has_client: bool) -> RequestTrace:
        """The trace of a request that begins now; `has_client`: a child of the client's span, if it sent one."""
        ...

    def received(self, message: agent_pb2.Message, trace: RequestTrace) -> None:
        """Record the hop of a worker's message, if it is of this trace of its request."""
        ...


class _NotTraced:
    """The trace of a request that is not traced."""

    trace_id = ""

    def stamp(self, message: agent_pb2.Message) -> None:
        return

    def event(self, name: str, attributes: Mapping[str, str | int]) -> None:
        return

    def end(self, outcome: Outcome | None) -> None:
        return


NOT_TRACED: RequestTrace = _NotTraced()


class NoTracer:
    """Traces nothing."""

    def begin(self, name: str, view: PlanView, request_id: str, *, has_client: bool) -> RequestTrace:
        return NOT_TRACED

    def received(self, message: agent_pb2.Message, trace: RequestTrace) -> None:
        return
