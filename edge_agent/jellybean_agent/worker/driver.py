"""Drives a worker's brain: passes it incoming messages, has the runner execute its runs, and sends its messages.

Messages are received and sent in the event loop; the runner's thread reports finished runs to the brain itself, so a
lock protects the brain.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import grpc

from jellybean_agent.admission.process import REQUEST_BYTES
from jellybean_agent.brain.brain import Brain, MemoryLimits
from jellybean_agent.brain.messages import (
    GATEWAY,
    Instruction,
    RequestExpired,
    RequestFailed,
    RunOperator,
    SendMessage,
    WakeAt,
)
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.brain.run_queue import BatchPolicy
from jellybean_agent.errors import (
    AgentError,
    PlanViewError,
    RefusedValuesError,
    StatusError,
    status_of,
)
from jellybean_agent.execution.executor import Executor
from jellybean_agent.system.memory import process_memory_bytes
from jellybean_agent.telemetry.refused_claims import RefusedClaims
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.transport.gateway_peers import AnyPeer
from jellybean_agent.transport.inboxes import StreamSource
from jellybean_agent.transport.message_wire import Data
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_agent.worker.direct_calls import DirectCalls, OnOutputs
from jellybean_agent.worker.emulated_links import EmulatedLinks
from jellybean_agent.worker.message_rights import MessageRights
from jellybean_agent.worker.outbox import Outbox
from jellybean_agent.worker.refused_values import attribute_error
from jellybean_agent.worker.request_tracer import NoTracer, RequestTracer
from jellybean_agent.worker.run_outputs import RunDone, is_direct_call
from jellybean_agent.worker.runner import FollowUp, Runner
from jellybean_agent.worker.stream_states import StreamStates
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
MAX_REQUESTS = 16_384  # most requests in flight of a workflow; above any gateway's limit
INPUT_BYTES = REQUEST_BYTES  # most bytes of inputs that wait or are run: what a gateway has in flight
_MESSAGE_BYTES = 2**9  # what a message takes besides its tensor
_FULL_QUEUE = 64  # queued items, or two batches if that is more, at which no credit is granted; resumes at half of it
_EXPIRE_EVERY_S = 1.0  # period at which all requests are checked against their deadlines


class Driver:
    """The runtime of one worker, from `start` to `stop`. `peers`: other workers, and the gateways under GATEWAY."""

    def __init__(
        self,
        view: PlanView,
        worker: str,
        executors: Mapping[str, Executor],
        peers: Mapping[str, AnyPeer],
        links: EmulatedLinks,
        tracer: RequestTracer | None = None,
        counters: WorkerCounters | None = None,
    ) -> None:
        """`counters`: those that its runs are counted in; by default they begin now."""
        self._view, self._worker = view, view.workers[worker]
        self._tracer = tracer or NoTracer()
        wiring = {name: view.operators[name].wiring for name in self._worker.operators}
        workflows = {name: view.workflow_of(name) for name in wiring} if view.workflows else {}
        policy = BatchPolicy(self._worker.batches, self._worker.delays, self._worker.loads, workflows=workflows)
        self._workflows = tuple(dict.fromkeys(workflows.values())) or ("",)
        limits = MemoryLimits(MAX_REQUESTS * len(self._workflows), min(INPUT_BYTES, process_memory_bytes() // 4))
        self._brain = Brain(worker, wiring, view.table, policy, limits)
        self._full = max(_FULL_QUEUE, 2 * max(self._worker.batches.values(), default=1))
        self._lock = threading.Lock()  # protects the brain, which the event loop and the executor thread use
        self._loop = asyncio.get_running_loop()  # its clock, CLOCK_MONOTONIC, may be read in both threads
        self._calls = DirectCalls()
        self.counters = counters or WorkerCounters(wiring)
        self.on_capacity: Callable[[str], None] = _nothing  # called after runs for workflows whose queue is short
        self._outbox = Outbox(view, self._worker, peers, links, self.counters, self._tracer)
        stateful = {name: view.operators[name].state for name in self._worker.operators if view.operators[name].state}
        self.states = StreamStates(
            view.operators, {name: executors[name].inputs[-len(state) :] for name, state in stateful.items()}
        )
        self._runner = Runner(view.operators, executors, self._calls, self._tracer, self, self.states)
        self._rights = MessageRights(view, worker)
        self.claims = RefusedClaims(LOG, {*view.workers, GATEWAY})
        self._expiry: asyncio.TimerHandle | None = None
        self._burst = False  # messages have come in this turn of the loop, after which a run starts

    def start(self) -> None:
        """Start the executor thread and the check of deadlines."""
        self._expiry = self._loop.call_later(_EXPIRE_EVERY_S, self._expire)
        self._runner.start()

    def stop(self) -> None:
        """End the executor thread after the run in progress. Not from the event loop's thread."""
        self._loop.call_soon_threadsafe(self._stop_expiry)
        self._runner.stop()

    def is_full(self, workflow: str = "") -> bool:
        """True if a workflow's queue is so long that senders get no further credit for it (backpressure).

        `workflow`: empty: all requests together, direct calls included.
        """
        return (self._brain.queued_of(workflow) if workflow else self.queued) >= self._full

    @property
    def queued(self) -> int:
        """Number of queued items, direct calls included."""
        return self._brain.queued + self._calls.unsubmitted

    def queued_by_operator(self) -> dict[str, int]:
        return self._brain.queued_by_operator()

    @property
    def requests_in_flight(self) -> int:
        return self._brain.requests_in_flight

    @property
    def direct_calls_in_flight(self) -> int:
        return len(self._calls)

    @property
    def unsent_expired(self) -> int:
        """Number of messages whose deadline passed before they could be sent."""
        return self._outbox.expired

    def busy_s(self) -> dict[str, float]:
        """Seconds busy by operator, the run in progress included."""
        busy_s = dict(self.counters.busy_s)
        current = self._runner.current
        if current is not None:
            busy_s[current[0]] += self._loop.time() - current[1]
        return busy_s

    # -- direct calls -------------------------------------------------------------------------------------------------

    async def call_operator(
        self, operator: str, inputs: Sequence[Array], timeout_s: float | None, client: str = ""
    ) -> Mapping[str, Array]:
        """Run one operator of this worker outside the pipeline; returns the model's outputs by name.

        StatusError when there are too many such calls, the run fails, or it takes longer than `timeout_s`.
        """
        outputs: asyncio.Future[Mapping[str, Array]] = self._loop.create_future()
        request = self.begin_call(operator, inputs, partial(_resolve, outputs), client)
        try:
            async with asyncio.timeout(timeout_s):
                return await outputs
        except TimeoutError as error:
            raise self.deadline_error(operator, timeout_s or 0.0) from error
        finally:
            self.cancel_call(request)

    def begin_call(self, operator: str, inputs: Sequence[Array], on_outputs: OnOutputs, client: str = "") -> str:
        """Like `call_operator`, but returns the call's request id at once. StatusError if overloaded.

        `client`: the URI of its identity; clients share the calls that may be in flight.
        """
        request = "" if self.is_full() else self._calls.add(operator, inputs, on_outputs, client)
        if not request:
            reason = f"overloaded: {self.queued} requests wait, {len(self._calls)} for single operators; try later"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        if len(self._calls) == 1:
            self._submit_calls()
        elif self._calls.unsubmitted == 1:  # submit later: other calls in this turn of the loop may share the run
            self._loop.call_soon(self._submit_calls)
        return request

    def _submit_calls(self) -> None:
        calls = self._calls.take_unsubmitted()
        if calls:
            with self._lock:
                instructions = self._brain.call_operators(calls, self._loop.time())
            self._act(instructions)

    def cancel_call(self, request: str) -> None:
        """Drop a direct call whose client is gone."""
        if self._calls.drop(request):
            self._forget(request)

    def deadline_error(self, operator: str, timeout_s: float) -> StatusError:
        """The error of a direct call that was not answered in time."""
        reason = f"no answer of {operator} within {timeout_s:.3g} s: {self.queued} requests wait"
        return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def abandon_calls(self) -> None:
        """Fail all direct calls, as this worker shuts down."""
        self._calls.fail_all(StatusError(grpc.StatusCode.UNAVAILABLE, f"worker {self._worker.name} is shutting down"))

    # -- messages -----------------------------------------------------------------------------------------------------

    def receive(self, wire: agent_pb2.Message, source: StreamSource, data: Data = b"") -> None:
        """A message from a peer. PlanViewError when it is of another plan; other faults fail its request only.

        One that its sender has no right to is dropped: the request may be another's.
        """
        if wire.plan != self._view.hash:
            raise PlanViewError(
                f"{self._worker.name} serves plan {self._view.hash[:12]}, the message is of {wire.plan[:12]}"
            )
        if excess := self._rights.excess(wire, source):
            stated = f"{wire.upstream!r} to {wire.downstream!r} on route {wire.route}"
            self.claims.refuse(source.sender, excess, stated)
            return
        if wire.HasField("failure"):
            self._forget(wire.request_id)
            return
        try:
            message = self._tracer.read_message(self._view, self._worker.operators, wire, self._loop.time(), data)
        except AgentError as error:
            self._fail(wire.request_id, wire.downstream, str(error), status_of(error))
            self._forget(wire.request_id)
        else:
            waits = self._worker.batches.get(message.downstream, 1) > 1
            claim = source.sender, _MESSAGE_BYTES + (len(data) or len(wire.tensor.data))
            with self._lock:
                instructions = self._brain.received(message, self._loop.time(), more=waits, claim=claim)
            self._act(instructions)
            if waits and not self._burst:  # what has come with it may share the run
                self._burst = True
                self._loop.call_soon(self._end_burst)

    def _end_burst(self) -> None:
        self._burst = False
        with self._lock:
            instructions = self._brain.start(self._loop.time())
        self._act(instructions)

    def peer_lost(self, peer: str, reason: str, undelivered: Sequence[agent_pb2.Message]) -> None:
        """Fail the requests whose messages may not have arrived, naming the lost peer; the gateway retries them."""
        for message in {message.request_id: message for message in undelivered}.values():
            text = f"worker {peer} cannot be reached: {reason}"
            self._fail(message.request_id, message.downstream, text, grpc.StatusCode.UNAVAILABLE, peer)
            self._forget(message.request_id)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run_completed(self, run: RunOperator, done: RunDone | AgentError) -> tuple[RunOperator | None, FollowUp]:
        """Report a finished run to the brain; returns (next run or None, work left for `follow_up`). Thread-safe."""
        status = grpc.StatusCode.INTERNAL
        outputs: dict[str, Mapping[str, Array]] = {}
        with self._lock:
            if isinstance(done, AgentError):
                if isinstance(done, RefusedValuesError):
                    done = attribute_error(self._view, run, done)
                status = status_of(done)
                self._log_failed_run(run, done)
                instructions = self._brain.failed(run.run, str(done), self._loop.time())
            else:
                self.counters.run_done(run, done)
                if is_direct_call(run):
                    outputs = {
                        item.request: of_item.by_downstream
                        for item, of_item in zip(run.items, done.outputs, strict=True)
                    }
                    size = self._calls.batch_size(run.operator, done.busy_s / len(run.items))
                    self._brain.limit_direct_call_batch(run.operator, size)
                instructions = self._brain.completed(run.run, done.outputs, self._loop.time())
        following = [instruction for instruction in instructions if isinstance(instruction, RunOperator)]
        others: list[Instruction] = [one for one in instructions if not isinstance(one, RunOperator)]
        return following[0] if following else None, FollowUp(others, status, outputs)

    def _log_failed_run(self, run: RunOperator, error: AgentError) -> None:
        self.counters.run_failed(run)
        if len(run.items) > 1 and not is_direct_call(run):
            text = "%s: a run of %d requests of %s failed, each runs again alone: %s"
            LOG.warning(text, self._worker.name, len(run.items), run.operator, error)

    def follow_up(self, after: FollowUp) -> None:
        """Answer direct calls and carry out the brain's instructions after a run. In the event loop."""
        self._calls.answer(after.outputs)
        self._act(after.instructions, after.status)
        for workflow in self._workflows:
            if self._brain.queued_of(workflow) <= self._full // 2:
                self.on_capacity(workflow)

    # -- instructions of the brain ------------------------------------------------------------------------------------

    def _act(self, instructions: Sequence[Instruction], status: grpc.StatusCode = grpc.StatusCode.INTERNAL) -> None:
        """Execute the brain's instructions. `status`: the gRPC status reported for requests that failed."""
        for instruction in instructions:
            if isinstance(instruction, RunOperator):
                self._runner.run(instruction)
            elif isinstance(instruction, SendMessage):
                try:
                    self._outbox.send(instruction.worker, instruction.message)
                except AgentError as error:
                    message = instruction.message
                    # A model's output: whatever is wrong with it, no client sent it.
                    self._fail(message.request, message.upstream, str(error), grpc.StatusCode.INTERNAL)
                    self._forget(message.request)
            elif isinstance(instruction, RequestFailed):
                own = grpc.StatusCode.RESOURCE_EXHAUSTED if instruction.overloaded else status
                self._fail(instruction.request, instruction.operator, instruction.reason, own)
            elif isinstance(instruction, RequestExpired):
                self.counters.expired[instruction.operator] += 1
            elif isinstance(instruction, WakeAt):
                self._loop.call_at(instruction.until, self._due)

    def _due(self) -> None:
        with self._lock:
            instructions = self._brain.due(self._loop.time())
        self._act(instructions)

    def _fail(
        self, request: str, operator: str, reason: str, status: grpc.StatusCode, worker: str | None = None
    ) -> None:
        """Fail a direct call, or report the failure of a pipeline's request to the gateway."""
        if request in self._calls:
            self._calls.fail(request, StatusError(status, f"operator {operator}: {reason}"))
        else:
            self._outbox.report_failure(request, operator, reason, status, worker)

    def _forget(self, request: str) -> None:
        with self._lock:
            instructions = self._brain.forget(request)
        self._act(instructions)
        self._outbox.forget(request)

    def _expire(self) -> None:
        """Drop requests whose deadline has passed, as a gateway that died cannot cancel them."""
        now_s = self._loop.time()
        with self._lock:
            instructions = self._brain.expire(now_s)
        self._act(instructions)
        self._outbox.expire(now_s)
        self._expiry = self._loop.call_later(_EXPIRE_EVERY_S, self._expire)

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()


def _nothing(_workflow: str) -> None:
    pass


def _resolve(future: asyncio.Future[Mapping[str, Array]], outputs: Mapping[str, Array] | AgentError) -> None:
    if future.done():
        return
    if isinstance(outputs, AgentError):
        future.set_exception(outputs)
    else:
        future.set_result(outputs)
