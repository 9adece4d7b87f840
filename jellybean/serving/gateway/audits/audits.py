"""Sends answered requests to the plan's reference as well, and compares its answers with those that were served.

An audit begins when its request has been answered, so no client waits for it or fails by it. Audits are the first that
goes under overload: those above the planned rate are shed. A lost one is counted, and never sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

import grpc

from jellybean.answer_metrics import MetricError, agreement
from jellybean.serving.gateway.audits.draw import AuditDraw, RateLimit
from jellybean.serving.gateway.byte_limits import MAX_BYTES_IN_FLIGHT, MAX_INCOMPLETE_BYTES
from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.gateway.requests.incomplete_answer import IncompleteAnswer
from jellybean.serving.gateway.requests.request import Attempt
from jellybean.serving.gateway.requests.sink_answer import SinkAnswer
from jellybean.serving.gateway.tracing import NOT_TRACED
from jellybean.serving.outcomes import Tensors
from jellybean_agent import (
    AUDIT_PREFIX,
    GATEWAY,
    AgentError,
    AuditView,
    InvalidInputError,
    RawTensor,
    SharedLimit,
    decode_tensor,
    describe_error,
    read_fan_out_path,
)
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")
BURST_S = 10.0  # of audits at the planned rate that may be sent at once
LEAST_BURST = 5.0
LEAST_IN_FLIGHT = 4


class AuditOutcome(StrEnum):
    """What became of a request that was drawn."""

    COMPARED = "compared"
    SHED = "shed"  # not sent: the gateway or the audit is busy, or a worker that it needs is away
    LOST = "lost"  # sent, and not answered in time, or failed


OnAudit = Callable[[ServedPlan, int, AuditOutcome, float], None]  # gets plan, route, outcome and agreement (0 to 1)


@dataclass(slots=True)
class AuditCounters:
    """Audits since the gateway's start, by outcome. `agreed`: sum of the agreements of those that were compared."""

    ended: dict[AuditOutcome, int] = field(default_factory=lambda: dict.fromkeys(AuditOutcome, 0))
    agreed: float = 0.0


@dataclass(eq=False, slots=True)
class _Audit:
    """An audit in flight. `served`: the answer that the client got; `size`: bytes of the inputs."""

    key: str
    plan: ServedPlan
    view: AuditView
    route: int
    served: agent_pb2.Tensor | RawTensor
    answer: SinkAnswer
    parts: IncompleteAnswer
    size: int
    timer: asyncio.TimerHandle | None = None


class Audits:
    """The audits of a gateway. `is_busy()`: requests fill half the gateway or wait for a route."""

    def __init__(
        self,
        current_plan: Callable[[], ServedPlan],
        is_busy: Callable[[], bool],
        *,
        max_in_flight: int,
        timeout_s: float,
        key_prefix: str = "",
        incomplete: SharedLimit | None = None,
    ) -> None:
        """`max_in_flight`: of the gateway's requests, of which audits may be their share. `timeout_s`: of an audit.

        `key_prefix`: of all audits of this process. `incomplete`: as of `InFlightRequests`.
        """
        self._incomplete = incomplete or SharedLimit(MAX_INCOMPLETE_BYTES)
        self._current_plan, self._is_busy = current_plan, is_busy
        self._max_in_flight, self._timeout_s = max_in_flight, timeout_s
        self._key = secrets.token_bytes(16)
        self.key_prefix = key_prefix + uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._audits: dict[str, _Audit] = {}
        self._bytes = 0  # of their inputs
        self._plan: ServedPlan | None = None  # that draw and limit are for
        self._draw, self._limit = AuditDraw(1.0, self._key), RateLimit(0.0, 0.0)
        self.counters = AuditCounters()
        self.on_audit: OnAudit | None = None

    def answered(self, inputs: Inputs, attempt: Attempt | None, outputs: Tensors) -> None:
        """Take a request that was answered, which is audited if it is drawn. `attempt`: that answered it."""
        plan = self._current_plan()
        view = plan.view.audit
        if view is None or attempt is None or attempt.plan is not plan:
            return
        if plan is not self._plan:
            self._begin(plan, view)
        if not self._draw.draw():
            return
        size = sum(len(tensor.data) for tensor in inputs.values())
        if self._is_shed(plan, view, attempt.route, size):
            self._count(plan, attempt.route, AuditOutcome.SHED)
            return
        key = f"{self.key_prefix}-{secrets.token_hex(8)}-{next(self._numbers)}"
        parts = IncompleteAnswer(self._incomplete)
        self._send(_Audit(key, plan, view, attempt.route, outputs[view.answer], SinkAnswer(), parts, size), inputs)

    def _begin(self, plan: ServedPlan, view: AuditView) -> None:
        rate_per_s = view.share * plan.view.figures.rate_per_s
        self._plan, self._draw = plan, AuditDraw(view.share, self._key)
        self._limit = RateLimit(rate_per_s, max(LEAST_BURST, BURST_S * rate_per_s))

    def _is_shed(self, plan: ServedPlan, view: AuditView, route: int, size: int) -> bool:
        most = max(LEAST_IN_FLIGHT, math.ceil(view.share * self._max_in_flight))
        is_full = bool(self._audits) and self._bytes + size > view.share * MAX_BYTES_IN_FLIGHT
        if self._is_busy() or is_full or len(self._audits) >= most:
            return True
        if view.yields and plan.is_after_loss:
            return True
        if any(plan.workers[name].state != "ready" for name in plan.workers_on(route, is_audit=True)):
            return True
        return not self._limit.take(time.monotonic())

    def _send(self, audit: _Audit, inputs: Inputs) -> None:
        """Send the request over the route of its answer, whose workers of the audit are those of the plan's rates."""
        self._audits[audit.key] = audit
        self._bytes += audit.size
        audit.timer = asyncio.get_running_loop().call_later(self._timeout_s, self._lose, audit, "it was not answered")
        named = ((f"{AUDIT_PREFIX}{source}", tensor) for source, tensor in inputs.items())
        own = {source: tensor for source, tensor in named if source in audit.view.source_outputs}
        until_s = time.monotonic() + self._timeout_s
        try:
            audit.plan.send(audit.key, audit.route, cast(Inputs, own), until_s, NOT_TRACED, is_audit=True)
        except Exception as error:  # a boundary: the request's client has its answer already
            LOG.exception("an audit cannot be sent")
            self._lose(audit, describe_error(error))

    def receive(self, message: agent_pb2.Message, sender: str) -> bool:
        """Take an output or a failure from a worker; False if it is of no audit in flight.

        What the sender has no right to say is dropped.
        """
        audit = self._audits.get(message.request_id)
        if audit is None:
            return False
        operators = frozenset((audit.view.reference,))
        if audit.plan.refuses(message, sender, audit.route, operators, is_audit=True):
            return True
        if message.HasField("failure"):
            self._lose(audit, message.failure.reason)
        else:
            self._receive_output(audit, sender, message)
        return True

    def _receive_output(self, audit: _Audit, sender: str, message: agent_pb2.Message) -> None:
        try:
            path = read_fan_out_path(message, audit.plan.view.operators[audit.view.reference].depth)
        except InvalidInputError as error:
            self._lose(audit, str(error))
            return
        answer = audit.answer
        parts, size = answer.parts, answer.size
        if answer.add(path, message.tensor):
            self._compare(audit)
        elif excess := audit.parts.keep(sender, answer.parts - parts, answer.size - size):
            self._lose(audit, excess)

    def _compare(self, audit: _Audit) -> None:
        """End an audit whose answer is complete."""
        signature = audit.plan.signature(audit.view.reference)
        spec = signature.outputs[GATEWAY] if signature else agent_pb2.TensorSpec()
        try:
            answers = decode_tensor(audit.served), decode_tensor(audit.answer.tensor(spec))
            agreed = agreement(audit.view.metric, *answers)
        except (AgentError, MetricError) as error:
            self._lose(audit, f"the answers cannot be compared: {error}")
            return
        except Exception as error:  # a boundary: whatever the answers hold, requests go on
            LOG.exception("the answers of an audit cannot be compared")
            self._lose(audit, describe_error(error))
            return
        self._end(audit)
        self._count(audit.plan, audit.route, AuditOutcome.COMPARED, agreed)

    def _lose(self, audit: _Audit, reason: str) -> None:
        """End an audit that has no answer; the workers on its route drop it."""
        LOG.debug("an audit was lost: %s", reason)
        status = grpc.StatusCode.CANCELLED.value[0]
        self._end(audit, agent_pb2.Failure(reason=reason[:500], status=int(status)))
        self._count(audit.plan, audit.route, AuditOutcome.LOST)

    def _end(self, audit: _Audit, failure: agent_pb2.Failure | None = None) -> None:
        del self._audits[audit.key]
        self._bytes -= audit.size
        audit.parts.release()
        if audit.timer is not None:
            audit.timer.cancel()
        audit.plan.end_attempt(audit.key, audit.route, failure, is_audit=True)

    def _count(self, plan: ServedPlan, route: int, outcome: AuditOutcome, agreed: float = 0.0) -> None:
        self.counters.ended[outcome] += 1
        self.counters.agreed += agreed
        if self.on_audit is not None:
            self.on_audit(plan, route, outcome, agreed)

    def on_worker_lost(self, plan: ServedPlan, worker: str, reason: str) -> None:
        """Lose the audits that may have been at a worker which is gone."""
        for audit in list(self._audits.values()):
            if audit.plan is plan and worker in plan.workers_on(audit.route, is_audit=True):
                self._lose(audit, f"worker {worker} is gone: {reason}")

    def close(self) -> None:
        """Lose the audits in flight."""
        for audit in list(self._audits.values()):
            self._lose(audit, "the gateway is shutting down")
