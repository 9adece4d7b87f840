"""Requests in hand, and the ways on which they are tried: the one place where a request is tried again.

What a lost worker had in hand goes another route under a key of its own, so that an answer counts once whoever gives
it. A request that finds no route open waits for one; one that is slow may go a second way. No task waits for any of it:
whoever asks is told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable

import grpc

from jellybean.serving.gateway.answers import SinkAnswer
from jellybean.serving.gateway.fleet import Fleet
from jellybean.serving.gateway.hedging import RESERVE, Hedge
from jellybean.serving.gateway.in_flight import Attempt, Figures, Request, Tell, Tensors, outputs_of
from jellybean.serving.gateway.inputs import Inputs
from jellybean.serving.gateway.retry_budget import RetryBudget
from jellybean.serving.outcomes import Outcome
from jellybean_agent import (
    AgentError,
    InvalidInputError,
    describe_error,
    log_fields,
    read_fan_out_path,
    status_from_number,
    status_of,
)
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_TRIES = 8  # of one request
RETRY_SHARE = 0.2  # of the requests, in the long run
_TELL_S = 0.05  # before a client's deadline, at most: or he never learns why there was no answer
_OF_CLIENTS = (  # their doing, and so no warning here
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS),
    *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED),
)


class Trying:
    """What a gateway has in hand.

    `timeout_s`: of a request that asks for no shorter one. `hedge`: when a slow request is sent a second way.
    """

    _fleet: Fleet  # of the plan that new requests are served by

    def __init__(self, max_in_hand: int, timeout_s: float, hedge: Hedge | None) -> None:
        self._hedge, self._timeout_s = hedge, timeout_s
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._requests: dict[Request, None] = {}
        self._attempts: dict[str, Attempt] = {}  # under way, by key
        self._waiting: dict[Request, None] = {}  # for a route
        self._budget = RetryBudget(max_in_hand, RETRY_SHARE)
        self.figures = Figures()
        self.changed = asyncio.Event()  # set whenever `refusing` may be another

    # -- a request ----------------------------------------------------------------------------------------------------

    async def _told(self, begin: Callable[[Tell], Request | None]) -> tuple[Outcome | None, Tensors]:
        """What becomes of a request that is begun here, for who waits; who waits no longer gives it up."""
        answer: asyncio.Future[tuple[Outcome | None, Tensors]] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome | None, outputs: Tensors) -> None:
            if not answer.done():
                answer.set_result((outcome, outputs))

        request = begin(tell)
        try:
            return await answer
        finally:
            if request is not None:
                self.give_up(request)

    def _take_in_hand(self, inputs: Inputs, left_s: float | None, request_id: str, tell: Tell) -> Request:
        """Begin to serve a request within the seconds left for it; `tell`: what becomes of it, once, maybe at once."""
        loop = asyncio.get_running_loop()
        timeout_s = min(self._timeout_s, left_s if left_s is not None else self._timeout_s)
        within_s = within(timeout_s)
        sinks = frozenset(self._fleet.view.sinks)
        request = Request(inputs, time.monotonic() + within_s, tell, request_id, within_s, sinks)
        self._requests[request] = None
        request.timer = loop.call_later(within_s, self._late, request, timeout_s)
        try:
            self._budget.earn()
            self._try(request)
            if self._hedge is not None and self._hedge.after_s < within_s:
                request.hedging = loop.call_later(self._hedge.after_s, self._hedge_request, request)
        except AgentError as error:
            self._finish(request, Outcome(status_of(error), str(error)))
        return request

    def give_up(self, request: Request) -> None:
        """Nobody waits for a request any more."""
        self._finish(request, Outcome(grpc.StatusCode.CANCELLED, "the client cancelled"))

    def _finish(self, request: Request, found: Outcome | Attempt) -> None:
        """A request is in hand no more; whoever asked is told. Once: what comes later changes nothing."""
        if request.is_over:
            return
        request.is_over = True
        outcome, outputs = (found, {}) if isinstance(found, Outcome) else self._answer(request, found)
        for timer in (request.timer, request.hedging):
            if timer is not None:
                timer.cancel()
        del self._requests[request]
        self._waiting.pop(request, None)
        if outcome is not None:
            self._log(outcome, request.request_id, request)
        for attempt in list(request.attempts.values()):
            slower = None if attempt is found else Outcome(grpc.StatusCode.CANCELLED, "another way was quicker")
            self._end(attempt, outcome or slower)
        request.tell(outcome, outputs)

    def _answer(self, request: Request, found: Attempt) -> tuple[Outcome | None, Tensors]:
        try:
            outputs = dict(outputs_of(found))
        except AgentError as error:
            return Outcome(status_of(error), str(error)), {}
        except Exception as error:  # a boundary: whatever an answer holds, the request ends and is told about
            LOG.exception("an answer cannot be put together")
            return Outcome(grpc.StatusCode.INTERNAL, f"the answer cannot be put together: {describe_error(error)}"), {}
        if self._hedge is not None:
            took_s = time.monotonic() + request.within_s - request.until_s
            if request.tries == 1 or (request.tries == 2 and request.slow is not None):  # nothing of one that was lost
                self._hedge.answered(took_s, request.slow is None or found is request.slow)
        return None, outputs

    def _late(self, request: Request, timeout_s: float) -> None:
        """A request's time is up."""
        is_waiting = request in self._waiting
        if is_waiting:
            reason = f"no route was open within {timeout_s:.3g} s: {request.lost or self._fleet.closed}"
        else:
            missing = ", ".join(sorted({sink for attempt in request.attempts.values() for sink in attempt.missing}))
            reason = f"no answer of {missing} within {timeout_s:.3g} s: overloaded or stuck"
        self._finish(request, Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason, stuck=not is_waiting))

    def _log(self, outcome: Outcome, request_id: str = "", request: Request | None = None) -> None:
        """The one line of a request that was refused or failed."""
        attempts = ", ".join(request.attempts) if request is not None else ""
        level = logging.INFO if outcome.status in _OF_CLIENTS else logging.WARNING
        text = "a request was refused: %s" if request is None else "a request failed: %s"
        trace, status = self._trace_id(request), outcome.status.name
        fields = log_fields(request_id=request_id, attempts=attempts, trace_id=trace, status=status)
        LOG.log(level, text, outcome.reason, extra=fields)

    def _trace_id(self, _request: Request | None) -> str:
        return ""  # `TracedGateway` knows

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _try(self, request: Request) -> None:
        """Send a request on its way by a route that is open, or have it wait for one."""
        fleet = self._fleet
        if request.inputs.keys() != fleet.view.source_outputs.keys():
            raise InvalidInputError("the plan that has taken over has other sources")
        if request.sinks != frozenset(fleet.view.sinks):
            raise InvalidInputError("the plan that has taken over has other sinks")
        route = fleet.draw()
        if route is None:
            self._waiting[request] = None
            return
        self._waiting.pop(request, None)
        self._begin(request, fleet, route)

    def _begin(self, request: Request, fleet: Fleet, route: int) -> None:
        request.tries += 1
        sinks = fleet.view.sinks
        key = f"{self._run}-{next(self._numbers)}"
        attempt = Attempt(key, request, fleet, route, {sink: SinkAnswer() for sink in sinks}, set(sinks))
        request.attempts[key] = self._attempts[key] = attempt
        fleet.send(key, route, request.inputs, request.until_s, request.trace)

    def _hedge_request(self, request: Request) -> None:
        """A request has no answer yet: send it a second way, if there is one and the budget of retries has plenty."""
        if request.is_over or len(request.attempts) != 1 or request.tries >= MAX_TRIES:
            return
        (slow,) = request.attempts.values()
        route = slow.fleet.aside(slow.route) if slow.fleet is self._fleet else None
        if route is not None and self._budget.take(RESERVE):
            self.figures.hedged += 1
            request.slow = slow
            self._begin(request, slow.fleet, route)

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """An attempt leads nowhere any more; `outcome`: why, unless it was answered."""
        del self._attempts[attempt.key]
        del attempt.request.attempts[attempt.key]
        failure = None
        if outcome is not None:
            failure = agent_pb2.Failure(reason=outcome.reason, status=int(outcome.status.value[0]))
        attempt.fleet.over(attempt.key, attempt.route, failure)

    def _lost(self, attempt: Attempt, reason: str) -> None:
        """An attempt was lost with a worker or a hop: its request goes another way, as far as the budget allows."""
        request = attempt.request
        self._end(attempt, Outcome(grpc.StatusCode.UNAVAILABLE, reason))
        if request.is_over:
            return
        LOG.info(
            "an attempt was lost: %s", reason, extra=log_fields(attempts=attempt.key, trace_id=self._trace_id(request))
        )
        request.lost = reason
        if request.attempts:  # it is under way a second time
            return
        if request.tries >= MAX_TRIES:
            reason += f" (tried {request.tries} times)"
        elif not self._budget.take():
            reason += " (not tried again: too much is being lost for it)"
        else:
            self.figures.retried += 1
            self._waiting[request] = None
            self._try_in_time(request)
            return
        self._finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, reason))

    def _try_in_time(self, request: Request) -> None:
        try:
            self._try(request)
        except AgentError as error:
            self._finish(request, Outcome(status_of(error), str(error)))

    def _changed(self) -> None:
        """Another route may be open: those that wait try theirs, in the order in which they came."""
        self.changed.set()
        for request in list(self._waiting):
            if not request.is_over:
                self._try_in_time(request)

    def _gone(self, fleet: Fleet, worker: str, reason: str) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.key not in self._attempts:  # it was its request's second one
                continue
            if attempt.fleet is fleet and worker in fleet.view.routes[attempt.route].values():
                self._lost(attempt, f"worker {worker} is gone: {reason}")

    def receive(self, message: agent_pb2.Message) -> None:
        """An answer or a failure from a worker; what comes of an attempt that is over is dropped."""
        attempt = self._attempts.get(message.request_id)
        if attempt is None:
            return
        if message.HasField("failure"):
            failure = message.failure
            reason = f"worker {failure.worker}, operator {failure.operator}: {failure.reason}"
            status = status_from_number(failure.status)
            if status is grpc.StatusCode.UNAVAILABLE:
                attempt.fleet.bar(attempt.route)
                self._lost(attempt, reason)
            elif len(attempt.request.attempts) > 1:
                self._end(attempt, Outcome(status, reason))
            else:
                self._finish(attempt.request, Outcome(status, reason))
        elif message.upstream in attempt.answers:
            try:
                path = read_fan_out_path(message, attempt.fleet.view.operators[message.upstream].depth)
            except InvalidInputError as error:
                reason = f"answer of {message.upstream}: {error}"
                self._finish(attempt.request, Outcome(grpc.StatusCode.INTERNAL, reason))
                return
            if attempt.answers[message.upstream].add(path, message.tensor):
                attempt.missing.discard(message.upstream)
            if not attempt.missing:
                self._finish(attempt.request, attempt)


def within(timeout_s: float) -> float:
    """How long an answer is waited for, so that the reason why there is none still reaches the client."""
    return timeout_s - min(_TELL_S, 0.1 * timeout_s)
