"""A request in flight, and its attempts over routes of a plan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.gateway.requests.incomplete_answer import IncompleteAnswer
from jellybean.serving.gateway.requests.sink_answer import SinkAnswer
from jellybean.serving.gateway.tracing import RequestTrace
from jellybean.serving.outcomes import Outcome, OutcomeKind, Tensors
from jellybean_agent import GATEWAY, StreamPosition, log_fields
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")
_BY_CLIENTS = (OutcomeKind.CANCELLED, OutcomeKind.CLIENT_ERROR)
OnFinished = Callable[[Outcome | None, Tensors], None]  # gets the result of a request, once


@dataclass(eq=False, slots=True)
class Attempt:
    """One try of a request over one route.

    `key` is the id that workers see: never reused, whatever ids clients choose.
    """

    key: str
    request: Request
    plan: ServedPlan
    route: int
    answers: dict[str, SinkAnswer]  # by sink
    missing: set[str]  # sinks whose answer is not complete
    parts: IncompleteAnswer | None = None  # the answers so far, while one is not complete

    def outputs(self) -> dict[str, agent_pb2.Tensor]:
        """Sink -> answer, once every answer is complete. PermanentError when a sink's parts do not fit together."""
        found = {}
        for sink, answer in self.answers.items():
            signature = self.plan.signature(sink)
            found[sink] = answer.tensor(signature.outputs[GATEWAY] if signature else agent_pb2.TensorSpec())
        return found


@dataclass(eq=False, slots=True)
class Request:
    """A request in flight. Invariant: until `is_over` it has an attempt under way or waits for an open route."""

    inputs: Inputs
    deadline_s: float  # CLOCK_MONOTONIC
    on_finished: OnFinished
    request_id: str  # chosen by the client; empty: none
    time_limit_s: float  # from its arrival to its deadline
    sinks: frozenset[str]  # of the plan at its arrival
    trace: RequestTrace
    is_over: bool = False
    attempts: dict[str, Attempt] = field(default_factory=dict)  # attempts in progress, by key
    tries: int = 0  # attempts so far
    last_loss: str = ""  # why the last lost attempt was lost
    hedged: Attempt | None = None  # the slow attempt that a second one was started beside
    deadline_timer: asyncio.TimerHandle | None = None
    hedge_timer: asyncio.TimerHandle | None = None
    position: StreamPosition | None = None  # the state that it continues
    answered_by: Attempt | None = None


def log_failure(outcome: Outcome, request_id: str, trace: RequestTrace, attempts: Iterable[str] | None = None) -> None:
    """Log one line for a request that failed; `attempts` None: it was refused before any attempt."""
    level = logging.INFO if outcome.kind in _BY_CLIENTS else logging.WARNING
    text = "a request was refused: %s" if attempts is None else "a request failed: %s"
    keys, trace_id, status = ", ".join(attempts or ()), trace.trace_id, outcome.status.name
    fields = log_fields(request_id=request_id, attempts=keys, trace_id=trace_id, status=status)
    LOG.log(level, text, outcome.reason, extra=fields)
