"""Interface by which a driver reads messages, runs items and writes messages, so that spans can be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jellybean_agent.brain.messages import EdgeMessage, WorkItem
from jellybean_agent.brain.plan_view import OperatorView, PlanView
from jellybean_agent.execution.executor import Executor
from jellybean_agent.transport.message_wire import Data, read_message, write_message
from jellybean_agent.worker.run_outputs import RunDone, run_items
from jellybean_protos.agent.v1 import agent_pb2


class RequestTracer(Protocol):
    """The points at which spans of requests begin and end."""

    needs_blocking_runs: bool  # a span covers a run that one thread waits for, so no run may be asynchronous

    def read_message(
        self, view: PlanView, operators: Sequence[str], wire: agent_pb2.Message, now_s: float, data: Data = b""
    ) -> EdgeMessage:
        """Like `message_wire.read_message`, for a message that has just arrived; may record its `hop` span."""
        ...

    def run_items(self, operator: OperatorView, executor: Executor, items: Sequence[WorkItem]) -> RunDone:
        """Like `run_outputs.run_items`; may record spans of each item."""
        ...

    def write_message(self, plan: str, message: EdgeMessage) -> tuple[agent_pb2.Message, Data]:
        """Like `message_wire.write_message`, for a message sent now; may add its trace context."""
        ...

    def trace_id(self, request: str) -> str:
        """Trace id of a recent request, for the log; empty if it is not traced."""
        ...


class NoTracer:
    """A tracer for agents without tracing: it records no spans and calls what it is given directly."""

    needs_blocking_runs = False
    read_message = staticmethod(read_message)
    run_items = staticmethod(run_items)
    write_message = staticmethod(write_message)

    def trace_id(self, _request: str) -> str:
        return ""
