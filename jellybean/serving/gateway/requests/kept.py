"""Requests of sources with `deliver: eventually`: kept in the spool until they have their answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import grpc

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import check_inputs
from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.gateway.requests.in_flight import InFlightRequests, answer_limit_s
from jellybean.serving.gateway.requests.request import Attempt, OnFinished, Request, log_failure
from jellybean.serving.gateway.tracing import RequestTrace, Tracer
from jellybean.serving.outcomes import Outcome, Result, Tensors
from jellybean.serving.spool.delivery import Key, SpoolDelivery, Tried
from jellybean.serving.spool.spool import Spool
from jellybean_agent import AgentError, status_of


class KeptRequests:
    """Keeps requests in `spool`, has `requests` try them, and answers their clients.

    `current_plan()` serves new attempts; `is_open()`: True if a request would reach a worker now.
    """

    def __init__(
        self,
        spool: Spool,
        requests: InFlightRequests,
        current_plan: Callable[[], ServedPlan],
        is_open: Callable[[], bool],
        counters: RequestCounters,
        tracer: Tracer,
        on_answer: Callable[[Key, Attempt | None, Tensors], None],
    ) -> None:
        """`on_answer` gets each answer, once, when it is on disk; its key names it for labels."""
        self._requests, self._current_plan, self._counters, self._tracer = requests, current_plan, counters, tracer
        self._on_answer = on_answer
        self._delivery = SpoolDelivery(spool, self._try_once, is_open, counters.count)

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return self._delivery.spool.waiting

    @property
    def size_bytes(self) -> int:
        """Size of the spool, answers included."""
        return self._delivery.spool.bytes

    @property
    def oldest_s(self) -> float:
        """Age in seconds of the oldest request without an answer; 0 without one."""
        return self._delivery.spool.oldest_s

    async def callers(self) -> list[str]:
        """The client of each request without an answer."""
        return [Key.of(text).caller for text in await self._delivery.spool.waiting_ids()]

    def start(self) -> None:
        """Begin to try the requests of the spool."""
        self._delivery.start()

    def release(self) -> None:
        """End all waits for answers, as this process is about to stop."""
        self._delivery.release()

    async def close(self) -> None:
        """Stop trying, and close the spool; unanswered requests stay in it."""
        await self._delivery.close()

    async def infer(
        self, inputs: Tensors, timeout_s: float, key: Key, trace: RequestTrace, answer_id: str = ""
    ) -> Result:
        """Keep a request and wait up to `timeout_s` for its answer; without one it stays on disk.

        `answer_id`: by which labels name the answer of a request without an id, which gets one here. The request is
        counted once, however often its client asks: when it is first kept, and when the spool has its answer.
        """
        outputs: Tensors = {}
        outcome: Outcome | None
        is_kept = False
        try:
            if inputs:
                self._check(inputs)
            spool_key = key if key.id else Key(key.caller, uuid.uuid4().hex)
            is_new = await self._delivery.keep(spool_key, inputs, answer_id)
            is_kept = True
            if is_new:
                self._counters.receive(key.caller)
            outcome, outputs = await self._delivery.answer(spool_key, answer_limit_s(timeout_s))
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
            if not is_kept:
                self._counters.count_refused(outcome, key.caller)
        if outcome is not None and not outcome.kept:
            log_failure(outcome, key.id, trace)
        return outcome, outputs

    async def _try_once(self, answer_key: Key, inputs: Tensors) -> Tried:
        """Try a request of the spool once, in a trace of its own: its client may be long gone."""
        trace = self._tracer.begin("kept request", self._current_plan().view, "", has_client=False)
        outcome: Outcome | None = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        outputs: Tensors = {}
        request: Request | None = None

        def submit(on_finished: OnFinished) -> Request:
            nonlocal request
            request = self._requests.submit(inputs, None, "", trace, on_finished)
            return request

        try:
            self._check(inputs)
            outcome, outputs = await self._requests.result_of(submit)
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
        finally:
            trace.end(outcome)
        attempt = None if request is None else request.answered_by
        return Tried(outcome, outputs, partial(self._on_answer, answer_key, attempt, outputs))

    def _check(self, inputs: Tensors) -> None:
        plan = self._current_plan()
        check_inputs(plan.view, plan.signature, inputs)
