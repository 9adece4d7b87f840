"""The gateway: admits requests, has workers of the current plan answer them, and reports its state.

Its parts: `RequestAdmission` (limits), `InFlightRequests` (attempts, retries), `CurrentPlan` (workers, routes) and,
where sources have `deliver: eventually`, `KeptRequests` (on disk until answered). `service.py` is its gRPC interface.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import grpc
from prometheus_client.core import Metric

from jellybean.serving.gateway.audits.audits import Audits
from jellybean.serving.gateway.plans.current_plan import CurrentPlan, WorkerNetwork
from jellybean.serving.gateway.plans.served_plan import ServedPlan, Worker
from jellybean.serving.gateway.plans.source_messages import Inputs, check_inputs
from jellybean.serving.gateway.requests.admission import MAX_ID_BYTES, RequestAdmission
from jellybean.serving.gateway.requests.counters import RequestCounters
from jellybean.serving.gateway.requests.hedging import Hedge
from jellybean.serving.gateway.requests.in_flight import InFlightRequests, answer_limit_s, is_nearly_due
from jellybean.serving.gateway.requests.kept import KeptRequests
from jellybean.serving.gateway.requests.request import Attempt, OnFinished, Request, log_failure
from jellybean.serving.gateway.streams.streams import StreamChunk, StreamLimits, Streams, misplaced_chunk
from jellybean.serving.gateway.tracing import NOT_TRACED, NoTracer, RequestTrace, Tracer
from jellybean.serving.outcomes import Outcome, OutcomeKind, Result, Tensors
from jellybean.serving.spool.delivery import Key
from jellybean.serving.spool.spool import Spool
from jellybean_agent import AgentError, EmulatedLinks, PlanView, RawTensor, StatusError, StreamSource, status_of
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_IN_FLIGHT = 1024
TIMEOUT_S = 60.0
WORKER_STATES = ("ready", "starting", "draining", "quarantined", "gone")  # the worst last
_POLL_S = 0.01
_DRAINING = "the gateway is draining"
_NO_SPOOL = "a source has `deliver: eventually`, this gateway has no file to keep requests in: give --spool"


OnAnswer = Callable[[Key, Attempt | None, Tensors], None]
OnTensors = Callable[[PlanView, Mapping[str, agent_pb2.Tensor | RawTensor]], None]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits of a gateway. `timeout_s`: longest time limit of a request; `hedge`: when it is hedged, None: never."""

    max_in_flight: int = MAX_IN_FLIGHT
    timeout_s: float = TIMEOUT_S
    hedge: Hedge | None = None
    streams: StreamLimits = field(default_factory=StreamLimits)


class Gateway:
    """Serves the requests of one workflow. `start` connects to the workers, `close` ends everything."""

    def __init__(
        self,
        view: PlanView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        network: WorkerNetwork,
        settings: GatewaySettings = GatewaySettings(),
        *,
        spool: Spool | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`spool`: open, for requests of sources with `deliver: eventually`; closed with the gateway."""
        self._settings, self._tracer = settings, tracer or NoTracer()
        self.counters = RequestCounters(target_s=lambda: self.view.figures.slo_latency_p99_s)
        self.ledger_metrics: Callable[[bool], Iterable[Metric]] = lambda names_clients: ()  # of what is written
        self.on_answer: OnAnswer | None = None  # gets each answer that has an id
        self.on_inputs: OnTensors | None = None  # gets the inputs of each request that is accepted
        self.on_outputs: OnTensors | None = None  # gets each answer
        self.changed = asyncio.Event()  # set whenever `unavailable_reason` may have changed
        self._admission = RequestAdmission(settings.max_in_flight, network.in_flight_bytes)
        self._requests = InFlightRequests(
            lambda: self.plans.served,
            self.counters,
            self._tracer,
            max_in_flight=settings.max_in_flight,
            timeout_s=settings.timeout_s,
            hedge=settings.hedge,
            key_prefix=network.request_prefix,
            incomplete=network.incomplete_bytes,
        )
        self.audits = Audits(
            lambda: self.plans.served,
            self._is_busy,
            max_in_flight=settings.max_in_flight,
            timeout_s=settings.timeout_s,
            key_prefix=network.request_prefix,
            incomplete=network.incomplete_bytes,
        )
        self.plans = CurrentPlan(
            view,
            addresses,
            links,
            network,
            on_change=self._on_routes_changed,
            on_worker_lost=self._on_worker_lost,
        )
        self._streams = Streams(self._requests, lambda: self.plans.served, settings.timeout_s, settings.streams)
        self._kept: KeptRequests | None = None
        if spool is not None:
            is_open, current = lambda: not self.unavailable_reason, lambda: self.plans.served
            self._kept = KeptRequests(
                spool, self._requests, current, is_open, self.counters, self._tracer, self._keep_answer
            )
        self._draining, self._why_draining = False, "the gateway is draining: it takes no new requests"
        self._drain_until_s = math.inf

    def start(self) -> None:
        """Connect to the workers and serve the requests of the spool."""
        self.connect()
        self.serve_kept()

    def connect(self) -> None:
        """Connect to the workers."""
        self.plans.start()

    def serve_kept(self) -> None:
        """Begin to serve the requests of the spool."""
        if self._kept is not None:
            self._kept.start()

    async def close(self) -> None:
        """Fail the requests in flight and end all streams."""
        self._requests.fail_all(Outcome(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down"))
        self.audits.close()
        if self._kept is not None:
            await self._kept.close()
        await self.plans.close()

    @property
    def view(self) -> PlanView:
        """The plan that new requests are served by."""
        return self.plans.served.view

    def kept_oldest_s(self) -> float:
        """Age in seconds of the oldest request on disk that has no answer; 0 without one."""
        return 0.0 if self._kept is None else self._kept.oldest_s

    def signature(self, operator: str) -> agent_pb2.Signature | None:
        """Inputs and outputs of an operator's model; None before a worker has described it."""
        return self.plans.served.signature(operator)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def infer(
        self,
        inputs: Tensors,
        time_left_s: float | None,
        request_id: str = "",
        caller: str = "",
        chunk: StreamChunk | None = None,
        answer_id: str = "",
    ) -> Result:
        """Answer one request within `time_left_s`. `request_id`: unique per `caller` (a URI); empty: no id.

        `chunk`: the request's place in a stream, for plans with a state. `answer_id`: an id that need not be unique, by
        which a label names the answer of a request without `request_id`.
        """
        trace = self._tracer.begin("request", self.view, request_id[:MAX_ID_BYTES], has_client=True)
        outcome: Outcome | None = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        try:
            key = Key(caller, request_id)
            outcome, outputs = await self._infer(inputs, time_left_s, key, trace, chunk, answer_id)
        finally:
            trace.end(outcome)
        return outcome, outputs

    async def _infer(
        self,
        inputs: Tensors,
        time_left_s: float | None,
        key: Key,
        trace: RequestTrace,
        chunk: StreamChunk | None,
        answer_id: str,
    ) -> Result:
        size = len(key.id.encode())
        if size > MAX_ID_BYTES:
            reason = f"a request's id has {size} bytes; {MAX_ID_BYTES} are the most"
            return self._refuse(Outcome(grpc.StatusCode.INVALID_ARGUMENT, reason), Key(key.caller, ""), trace)
        if (misplaced := misplaced_chunk(self.view, chunk)) is not None:
            return self._refuse(misplaced, key, trace)
        if chunk is not None:
            return await self._infer_chunk(chunk, inputs, time_left_s, key, trace, answer_id)
        if self._kept is not None and (self.view.eventually or (key.id and not inputs)):
            if self._draining:
                return self._refuse(Outcome(grpc.StatusCode.UNAVAILABLE, self.unavailable_reason), key, trace)
            timeout_s = self._settings.timeout_s
            timeout_s = min(timeout_s, time_left_s if time_left_s is not None else timeout_s)
            return await self._kept.infer(inputs, timeout_s, key, trace, answer_id)
        answer_key = Key(key.caller, answer_id) if answer_id else None
        return await self._requests.result_of(
            lambda on_finished: self.submit(inputs, time_left_s, key, on_finished, trace=trace, answer_key=answer_key)
        )

    async def _infer_chunk(
        self,
        chunk: StreamChunk,
        inputs: Tensors,
        time_left_s: float | None,
        key: Key,
        trace: RequestTrace,
        answer_id: str,
    ) -> Result:
        """Answer a chunk of a stream, after those before it."""
        began, size = time.monotonic(), sum(len(tensor.data) for tensor in inputs.values())
        self.counters.receive(key.caller)
        outcome = self._refusal(inputs, key, size, are_checked=False)
        outputs: Tensors = {}
        given = key.id or answer_id
        limit_s = answer_limit_s(min(self._settings.timeout_s, time_left_s if time_left_s is not None else math.inf))
        is_admitted = outcome is None
        if is_admitted:
            self._accept(key, size, inputs)
            outcome = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        try:
            if is_admitted:
                outcome, outputs, answered = await self._streams.infer(chunk, inputs, time_left_s, key.id, trace)
                if answered is not None:
                    self._keep_answer(Key(key.caller, given or answered.name), answered.attempt, outputs)
        except asyncio.CancelledError:
            if is_nearly_due(began + limit_s, limit_s):
                outcome = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {limit_s:.3g} s")
            raise
        finally:
            if is_admitted:
                self._admission.remove(key, size, answered=outcome is None)
            self.counters.count(outcome, time.monotonic() - began, key.caller)
        if outcome is not None:
            log_failure(outcome, key.id, trace)
        elif self.on_outputs is not None:
            self.on_outputs(self.view, outputs)
        return outcome, outputs

    def _refuse(self, outcome: Outcome, key: Key, trace: RequestTrace) -> Result:
        """The result of a request that is refused before it is submitted, which is logged and counted."""
        log_failure(outcome, key.id, trace)
        self.counters.count_refused(outcome, key.caller)
        return outcome, {}

    def submit(
        self,
        inputs: Inputs,
        time_left_s: float | None,
        key: Key,
        on_finished: OnFinished,
        *,
        are_checked: bool = False,
        trace: RequestTrace = NOT_TRACED,
        answer_key: Key | None = None,
    ) -> Request | None:
        """Start a request; `on_finished` gets its result, once. Returns None if the request was refused.

        `key`: without an id it only names the caller. `are_checked`: the inputs are known to fit the models.
        `answer_key`: names the answer of a request without an id, and need not be unique.
        """
        began, client = time.monotonic(), key.caller
        self.counters.receive(client)
        size = sum(len(tensor.data) for tensor in inputs.values())
        outcome = self._refusal(inputs, key, size, are_checked=are_checked)
        if outcome is not None:
            log_failure(outcome, key.id, trace)
            self.counters.count(outcome, time.monotonic() - began, client)
            on_finished(outcome, {})
            return None
        self._accept(key, size, inputs)

        def finish(outcome: Outcome | None, outputs: Tensors) -> None:
            self._admission.remove(key, size, answered=outcome is None)
            self.counters.count(outcome, time.monotonic() - began, client)
            if outcome is None and request is not None:
                self._answered(key if key.id else answer_key, request.answered_by, outputs)
            on_finished(outcome, outputs)
            if outcome is None and request is not None:
                self.audits.answered(inputs, request.answered_by, outputs)

        request: Request | None = None  # no request is answered before `submit` returns
        request = self._requests.submit(inputs, time_left_s, key.id, trace, finish)
        return request

    def _accept(self, key: Key, size: int, inputs: Inputs) -> None:
        self._admission.add(key, size)
        if self.on_inputs is not None:
            self.on_inputs(self.view, inputs)

    def _answered(self, key: Key | None, attempt: Attempt | None, outputs: Tensors) -> None:
        if self.on_outputs is not None:
            self.on_outputs(self.view if attempt is None else attempt.plan.view, outputs)
        if key is not None:
            self._keep_answer(key, attempt, outputs)

    def _keep_answer(self, key: Key, attempt: Attempt | None, outputs: Tensors) -> None:
        if self.on_answer is not None:
            self.on_answer(key, attempt, outputs)

    def _refusal(self, inputs: Inputs, key: Key, size: int, *, are_checked: bool) -> Outcome | None:
        if self.state in ("draining", "starting"):
            return Outcome(grpc.StatusCode.UNAVAILABLE, self.unavailable_reason)
        outcome = self._admission.refusal(key, size, self._requests.count + self._streams.waiting)
        if outcome is not None:
            return outcome
        try:
            if not are_checked:
                check_inputs(self.view, self.plans.served.signatures.agreed, inputs)
        except AgentError as error:
            return Outcome(status_of(error), str(error))
        return None

    def cancel(self, request: Request) -> None:
        """End a request whose client is gone."""
        self._requests.cancel(request)

    @property
    def key_prefixes(self) -> tuple[str, str]:
        """What the keys of its attempts and of its audits begin with, in messages of workers."""
        return self._requests.key_prefix, self.audits.key_prefix

    def receive(self, message: agent_pb2.Message, source: StreamSource) -> None:
        """Take an output or a failure from a worker; what it has no right to say is dropped."""
        if not self.audits.receive(message, source.sender):
            self._requests.receive(message, source.sender)

    async def kept_callers(self) -> list[str]:
        """The client of each request on disk that waits for its answer."""
        return [] if self._kept is None else await self._kept.callers()

    # -- state --------------------------------------------------------------------------------------------------------

    def _on_routes_changed(self) -> None:
        self.changed.set()
        self._requests.on_routes_changed()

    def _on_worker_lost(self, plan: ServedPlan, worker: str, reason: str) -> None:
        self._requests.on_worker_lost(plan, worker, reason)
        self.audits.on_worker_lost(plan, worker, reason)

    def _is_busy(self) -> bool:
        """True if requests fill half the gateway, or wait for a route: nothing else is sent then."""
        return bool(self._requests.waiting) or self._requests.count > self._settings.max_in_flight / 2

    @property
    def state(self) -> str:
        """One of: starting, ready, degraded (some worker is not available), draining."""
        return "draining" if self._draining else self.plans.served.state

    @property
    def unavailable_reason(self) -> str:
        """Why a new request would not reach a worker now; empty when it would."""
        state = self.state
        if state == "draining":
            return self._why_draining
        if state == "starting":
            return f"still starting: {self.plans.served.starting_reason}"
        return self.plans.served.no_route_reason

    def status(self) -> gateway_pb2.StatusResponse:
        """State of the gateway and its workers, and counters of the requests since its start."""
        workers, counters = self.plans.served.workers, self.counters
        return gateway_pb2.StatusResponse(
            workflow=self.view.served_name,
            plan=self.view.hash,
            state=self.state,
            workers={name: worker.state for name, worker in workers.items()},
            reasons=self._notes(workers),
            requests_in_hand=self._requests.count,
            answered=counters.answered,
            failed=counters.failed,
            refused=counters.ended[OutcomeKind.SHED],
            expired=counters.ended[OutcomeKind.LATE],
            retried=counters.retried,
            waiting=self._requests.waiting,
            left_out=self.plans.served.left_out,
            hedged=counters.hedged,
            kept=self._kept.waiting if self._kept else 0,
            kept_bytes=self._kept.size_bytes if self._kept else 0,
        )

    def _notes(self, workers: Mapping[str, Worker]) -> dict[str, str]:
        """What a person should know of workers: why they are not ready, or what they claim beyond the plan."""
        claims = self.plans.served.claims
        notes = {name: worker.why or claims.note(name) for name, worker in workers.items()}
        return {name: note for name, note in notes.items() if note}

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for those in flight; returns the number left. Timeout 0: do not wait."""
        self._draining = True
        self.changed.set()
        self._drain_until_s = min(self._drain_until_s, time.monotonic() + timeout_s)  # the soonest of several calls
        while (self._requests.count or self._streams.waiting) and time.monotonic() < self._drain_until_s:
            await asyncio.sleep(_POLL_S)
        if self._kept is not None:
            self._kept.release()
        await self.plans.read_for_the_last_time()  # who asked for the drain may end the workers as soon as this returns
        return self._requests.count

    def require_replaceable_by(self, view: PlanView) -> None:
        """StatusError unless this workflow can be served by another plan's part for it."""
        lacks_spool = view.eventually and self._kept is None
        if self._draining or lacks_spool:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, _DRAINING if self._draining else _NO_SPOOL)

    def leave_out(self) -> None:
        """Refuse new requests, as the plan that has taken over does not serve this workflow."""
        self._draining, self._why_draining = True, "the plan that is served now leaves this workflow out"
        self.changed.set()

    async def finished(self) -> None:
        """Wait until no request is in flight."""
        while self._requests.count or self._streams.waiting:
            await asyncio.sleep(_POLL_S)
