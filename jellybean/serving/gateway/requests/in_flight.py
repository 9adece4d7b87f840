"""Requests in flight: each is attempted over an open route, and again when an attempt is lost.

The only place where requests are retried. Every attempt has its own key, so that each answer counts once. A request
waits while no route is open; a slow one may be hedged: attempted over a second route. There is no asyncio task per
request: results are delivered by callback.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable

import grpc

from jellybean.serving.gateway.byte_limits import MAX_INCOMPLETE_BYTES
from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.gateway.requests.hedging import BUDGET_RESERVE, Hedge
from jellybean.serving.gateway.requests.incomplete_answer import IncompleteAnswer
from jellybean.serving.gateway.requests.request import Attempt, OnFinished, Request, log_failure
from jellybean.serving.gateway.requests.retry_budget import RetryBudget
from jellybean.serving.gateway.requests.sink_answer import SinkAnswer
from jellybean.serving.gateway.tracing import RequestTrace, Tracer
from jellybean.serving.outcomes import Outcome, Result, Tensors
from jellybean_agent import (
    AgentError,
    InvalidInputError,
    SharedLimit,
    StreamPosition,
    describe_error,
    log_fields,
    printable,
    read_fan_out_path,
    status_from_number,
    status_of,
)
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_ATTEMPTS = 8  # per request
_MAX_REASON = 2000  # characters of what a worker says of a failure
RETRY_SHARE = 0.2  # retries per request in the long run
# Kept of a client's deadline so that the reason for a failure still reaches it: a round trip over a mobile network, or
# to a busy machine. Short time limits keep a tenth. `RpcCall.time_remaining` allows for the client's rounding.
_REPLY_MARGIN_S = 0.2
_KEY_BYTES = 8  # random ones in an attempt's key: a worker knows no key of a request that does not come to it
# A cancellation so shortly before the deadline is taken for the client's own deadline: how long its call took to arrive
# is not known here. A request that its client gives up there had nearly all of its time: late is no lie about it.
_NEARLY_DUE_S, _NEARLY_DUE_SHARE = 1.0, 0.1


class InFlightRequests:
    """The requests in flight and their attempts. `current_plan()` serves new attempts; `timeout_s`: longest time limit.

    `max_in_flight` sizes the retry budget; `hedge`: when a slow request gets a second attempt, None: never.
    `key_prefix`: of all attempts of this process.
    """

    def __init__(
        self,
        current_plan: Callable[[], ServedPlan],
        counters: RequestCounters,
        tracer: Tracer,
        *,
        max_in_flight: int,
        timeout_s: float,
        hedge: Hedge | None = None,
        key_prefix: str = "",
        incomplete: SharedLimit | None = None,
    ) -> None:
        """`incomplete`: bytes of answers that are not complete, of the process; its own limit if there is none."""
        self._incomplete = incomplete or SharedLimit(MAX_INCOMPLETE_BYTES)
        self._current_plan, self._counters, self._tracer = current_plan, counters, tracer
        self._hedge, self._timeout_s = hedge, timeout_s
        self._key_prefix = key_prefix + uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._requests: dict[Request, None] = {}  # in order of arrival
        self._attempts: dict[str, Attempt] = {}  # under way, by key
        self._waiting: dict[Request, None] = {}  # requests that wait for an open route
        self._budget = RetryBudget(max_in_flight, RETRY_SHARE)

    @property
    def key_prefix(self) -> str:
        """What the keys of all its attempts begin with."""
        return self._key_prefix

    @property
    def count(self) -> int:
        """Requests in flight."""
        return len(self._requests)

    @property
    def waiting(self) -> int:
        """Requests in flight that wait for an open route."""
        return len(self._waiting)

    # -- a request ----------------------------------------------------------------------------------------------------

    def submit(
        self,
        inputs: Inputs,
        time_left_s: float | None,
        request_id: str,
        trace: RequestTrace,
        on_finished: OnFinished,
        position: StreamPosition | None = None,
    ) -> Request:
        """Start a request that must end within `time_left_s`; `on_finished` may be called before this returns.

        `position`: the state of a stream that it continues.
        """
        loop = asyncio.get_running_loop()
        timeout_s = min(self._timeout_s, time_left_s if time_left_s is not None else self._timeout_s)
        limit_s = answer_limit_s(timeout_s)
        sinks = frozenset(self._current_plan().view.sinks)
        request = Request(inputs, time.monotonic() + limit_s, on_finished, request_id, limit_s, sinks, trace)
        request.position = position
        self._requests[request] = None
        request.deadline_timer = loop.call_later(limit_s, self._expire, request, timeout_s)
        try:
            self._budget.earn()
            self._attempt(request)
            if self._hedge is not None and position is None and self._hedge.after_s < limit_s:
                request.hedge_timer = loop.call_later(self._hedge.after_s, self._hedge_request, request)
        except AgentError as error:
            self._finish(request, Outcome(status_of(error), str(error)))
        return request

    async def result_of(self, submit: Callable[[OnFinished], Request | None]) -> Result:
        """The result of the request that `submit` starts; cancelling the caller cancels the request."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_finished(outcome: Outcome | None, outputs: Tensors) -> None:
            if not result.done():
                result.set_result((outcome, outputs))

        request = submit(on_finished)
        try:
            return await result
        finally:
            if request is not None:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request whose client is gone; no effect on one that has ended.

        A call that ends at its own deadline, or nearly there, is late, not cancelled, whichever timer is first.
        """
        if is_nearly_due(request.deadline_s, request.time_limit_s):
            self._expire(request, request.time_limit_s)
        else:
            self._finish(request, Outcome(grpc.StatusCode.CANCELLED, "the client cancelled"))

    def fail_all(self, outcome: Outcome) -> None:
        """End every request in flight."""
        for request in list(self._requests):
            self._finish(request, outcome)

    def _finish(self, request: Request, found: Outcome | Attempt) -> None:
        """End a request, by a failure or by a complete attempt. The first call counts, later ones have no effect."""
        if request.is_over:
            return
        request.is_over = True
        outcome, outputs = (found, {}) if isinstance(found, Outcome) else self._result(request, found)
        for timer in (request.deadline_timer, request.hedge_timer):
            if timer is not None:
                timer.cancel()
        del self._requests[request]
        self._waiting.pop(request, None)
        if outcome is not None:
            log_failure(outcome, request.request_id, request.trace, request.attempts)
        for attempt in list(request.attempts.values()):
            slower = None if attempt is found else Outcome(grpc.StatusCode.CANCELLED, "another attempt was faster")
            self._end(attempt, outcome or slower)
        request.on_finished(outcome, outputs)

    def _result(self, request: Request, found: Attempt) -> Result:
        try:
            outputs = found.outputs()
        except AgentError as error:
            return Outcome(status_of(error), str(error)), {}
        except Exception as error:  # a boundary: whatever the answers hold, the request ends with a reason
            LOG.exception("an answer cannot be put together")
            return Outcome(grpc.StatusCode.INTERNAL, f"the answer cannot be put together: {describe_error(error)}"), {}
        request.answered_by = found
        if self._hedge is not None and request.position is None:
            latency_s = time.monotonic() + request.time_limit_s - request.deadline_s
            had_no_loss = request.tries == 1 or (request.tries == 2 and request.hedged is not None)
            if had_no_loss:  # latencies of lost attempts say nothing about slow ones
                self._hedge.record(latency_s, request.hedged is None or found is request.hedged)
        return None, outputs

    def _expire(self, request: Request, timeout_s: float) -> None:
        """Fail a request at its deadline."""
        is_waiting = request in self._waiting
        if is_waiting:
            why = request.last_loss or self._current_plan().closed_reason
            reason = f"no route was open within {timeout_s:.3g} s: {why}"
        else:
            missing = ", ".join(sorted({sink for attempt in request.attempts.values() for sink in attempt.missing}))
            reason = f"no answer of {missing} within {timeout_s:.3g} s: overloaded or stuck"
        self._finish(request, Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason, stuck=not is_waiting))

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _attempt(self, request: Request) -> None:
        """Start an attempt; if the route drawn is closed, the request waits.

        InvalidInputError if the plan has other inputs. StatusError for a new request of a site whose workers have not
        been there yet, as it is not known whether they ever will; one that was accepted before waits for a route.
        """
        is_new = request.tries == 0 and request not in self._waiting
        plan = self._current_plan()
        if request.inputs.keys() != plan.view.source_outputs.keys():
            raise InvalidInputError("the plan that has taken over has other sources")
        if request.sinks != frozenset(plan.view.sinks):
            raise InvalidInputError("the plan that has taken over has other sinks")
        route = plan.draw(is_new=is_new) if request.position is None else plan.draw_for(request.position.stream)
        if route is None:
            self._waiting[request] = None
            request.trace.event("waits for a route", {})
            return
        self._waiting.pop(request, None)
        self._start(request, plan, route)

    def _start(self, request: Request, plan: ServedPlan, route: int) -> None:
        request.tries += 1
        sinks = plan.view.sinks
        key = f"{self._key_prefix}-{os.urandom(_KEY_BYTES).hex()}-{next(self._numbers)}"
        attempt = Attempt(key, request, plan, route, {sink: SinkAnswer() for sink in sinks}, set(sinks))
        request.attempts[key] = self._attempts[key] = attempt
        plan.send(key, route, request.inputs, request.deadline_s, request.trace, request.position)
        request.trace.event("attempt", {"key": key, "route": route})

    def _hedge_request(self, request: Request) -> None:
        """Start a second attempt of a slow request, if another route is open and the retry budget has a reserve."""
        if request.is_over or len(request.attempts) != 1 or request.tries >= MAX_ATTEMPTS:
            return
        (slow,) = request.attempts.values()
        route = slow.plan.alternative(slow.route) if slow.plan is self._current_plan() else None
        if route is not None and self._budget.take(BUDGET_RESERVE):
            self._counters.hedged += 1
            request.hedged = slow
            self._start(request, slow.plan, route)

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Remove an attempt that has ended; `outcome`: why it has no answer, None if it has one."""
        del self._attempts[attempt.key]
        del attempt.request.attempts[attempt.key]
        if attempt.parts is not None:
            attempt.parts.release()
        failure = None
        if outcome is not None:
            failure = agent_pb2.Failure(reason=outcome.reason, status=int(outcome.status.value[0]))
        attempt.plan.end_attempt(attempt.key, attempt.route, failure)

    def _lose(self, attempt: Attempt, reason: str) -> None:
        """Retry the request of an attempt that was lost with a worker or a hop, as far as the budget allows."""
        request = attempt.request
        request.trace.event("attempt lost", {"reason": reason[:500]})
        self._end(attempt, Outcome(grpc.StatusCode.UNAVAILABLE, reason))
        if request.is_over:
            return
        LOG.info(
            "an attempt was lost: %s", reason, extra=log_fields(attempts=attempt.key, trace_id=request.trace.trace_id)
        )
        request.last_loss = reason
        if request.attempts:  # another attempt (the hedge) is in progress
            return
        if request.tries >= MAX_ATTEMPTS:
            reason += f" (tried {request.tries} times)"
        elif not self._budget.take():
            reason += " (not retried: the retry budget is spent)"
        else:
            self._counters.retried += 1
            self._waiting[request] = None
            self._attempt_or_fail(request)
            return
        self._finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, reason))

    def _attempt_or_fail(self, request: Request) -> None:
        try:
            self._attempt(request)
        except AgentError as error:
            self._finish(request, Outcome(status_of(error), str(error)))

    def on_routes_changed(self) -> None:
        """Attempt the requests that wait for a route, in order of arrival."""
        for request in list(self._waiting):
            if not request.is_over:
                self._attempt_or_fail(request)

    def on_worker_lost(self, plan: ServedPlan, worker: str, reason: str) -> None:
        """Retry every attempt that may have been at a worker which is gone."""
        for attempt in list(self._attempts.values()):
            if attempt.key not in self._attempts:  # ended with the request of an attempt before it
                continue
            if attempt.plan is plan and worker in plan.workers_on(attempt.route):
                self._lose(attempt, f"worker {worker} is gone: {reason}")

    def receive(self, message: agent_pb2.Message, sender: str) -> None:
        """Take an output or a failure from a worker.

        Messages of attempts that have ended, and what the sender has no right to say, are dropped.
        """
        attempt = self._attempts.get(message.request_id)
        if attempt is None or attempt.plan.refuses(message, sender, attempt.route, attempt.request.sinks):
            return
        self._tracer.received(message, attempt.request.trace)
        if message.HasField("failure"):
            self._receive_failure(attempt, message.failure)
        else:
            self._receive_output(attempt, sender, message)

    def _receive_failure(self, attempt: Attempt, failure: agent_pb2.Failure) -> None:
        operator, told = (printable(text, _MAX_REASON) for text in (failure.operator, failure.reason))
        reason = f"worker {failure.worker}, operator {operator}: {told}"
        status = status_from_number(failure.status)
        if status is grpc.StatusCode.OK:  # a failure is none
            status = grpc.StatusCode.UNKNOWN
        if status is grpc.StatusCode.UNAVAILABLE:
            attempt.plan.bar(attempt.route)
            self._lose(attempt, reason)
        else:
            self._fail_attempt(attempt, Outcome(status, reason))

    def _fail_attempt(self, attempt: Attempt, outcome: Outcome) -> None:
        """End an attempt that failed, and its request unless another attempt is in progress."""
        if len(attempt.request.attempts) > 1:
            self._end(attempt, outcome)
        else:
            self._finish(attempt.request, outcome)

    def _receive_output(self, attempt: Attempt, sender: str, message: agent_pb2.Message) -> None:
        sink = attempt.plan.view.own_name(message.upstream)
        try:
            path = read_fan_out_path(message, attempt.plan.view.operators[sink].depth)
        except InvalidInputError as error:
            self._fail_attempt(attempt, Outcome(grpc.StatusCode.INTERNAL, f"answer of {sink}: {error}"))
            return
        answer = attempt.answers[sink]
        parts, size = answer.parts, answer.size
        if answer.add(path, message.tensor):
            attempt.missing.discard(sink)
        if not attempt.missing:
            self._finish(attempt.request, attempt)
            return
        attempt.parts = attempt.parts or IncompleteAnswer(self._incomplete)
        if excess := attempt.parts.keep(sender, answer.parts - parts, answer.size - size):
            self._fail_attempt(attempt, Outcome(grpc.StatusCode.INTERNAL, f"answer of {sink}: {excess}"))


def is_nearly_due(deadline_s: float, limit_s: float) -> bool:
    """True if a call that is cancelled now has reached its client's own deadline, as far as the gateway can tell.

    `deadline_s`: by the monotonic clock, `limit_s` after the call's arrival.
    """
    return time.monotonic() >= deadline_s - min(_NEARLY_DUE_S, _NEARLY_DUE_SHARE * limit_s)


def answer_limit_s(timeout_s: float) -> float:
    """Seconds to wait for an answer so that the reason for a failure reaches the client within `timeout_s`."""
    return timeout_s - min(_REPLY_MARGIN_S, 0.1 * timeout_s)
