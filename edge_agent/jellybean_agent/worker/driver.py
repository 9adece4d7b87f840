"""Drives a worker's brain: messages in, runs to the runner, messages out.

Receiving and sending happen in the event loop; the runner's thread tells the brain itself what it has finished. A lock
keeps the brain whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import grpc

from jellybean_agent.brain.brain import Brain, MemoryLimits
from jellybean_agent.brain.messages import (
    GATEWAY,
    EdgeMessage,
    Instruction,
    RequestExpired,
    RequestFailed,
    RunOperator,
    SendMessage,
    WakeAt,
)
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.brain.run_queue import BatchPolicy
from jellybean_agent.errors import AgentError, PlanViewError, StatusError, status_of
from jellybean_agent.execution.executor import Executor
from jellybean_agent.telemetry.logs import log_fields
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.transport.message_wire import Data, read_message, write_message
from jellybean_agent.transport.peers import Peer
from jellybean_agent.worker.counters import Figures
from jellybean_agent.worker.direct_calls import MAX_ASKED, Answered, Asks
from jellybean_agent.worker.emulated_links import EmulatedLinks
from jellybean_agent.worker.run_outputs import Done, is_asked, perform
from jellybean_agent.worker.runner import Aftermath, Runner
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
MAX_REQUESTS = 16_384  # in hand; a gateway has fewer
_FULL = 64  # items waiting where credit stops, or two batches if that is more; at half of it, it comes back
_SWEEP_S = 1.0  # how often what is too late is dropped, whatever it waits for


class Driver:
    """One worker at work. `peers` are the other workers and the gateway (under GATEWAY)."""

    begins_runs = True  # in the event loop where hosts can be asked so; else all runs are the executor thread's

    def __init__(
        self,
        view: PlanView,
        worker: str,
        executors: Mapping[str, Executor],
        peers: Mapping[str, Peer],
        links: EmulatedLinks,
    ) -> None:
        self._view, self._worker, self._executors, self._links = view, view.workers[worker], executors, links
        self._peers = peers
        own = {name: view.operators[name].wiring for name in self._worker.operators}
        policy = BatchPolicy(self._worker.batches, self._worker.delays, self._worker.loads)
        self._brain = Brain(worker, own, view.routes, policy, MemoryLimits(MAX_REQUESTS))
        self._full = max(_FULL, 2 * max(self._worker.batches.values(), default=1))
        self._lock = threading.Lock()  # of the brain: the event loop receives, the executor thread completes
        self._loop = asyncio.get_running_loop()
        self._asks = Asks()
        self.figures = Figures(own)
        self.on_room: Callable[[], None] = _nothing  # called while the queue is short
        self._runner = Runner(
            *(worker, view.operators, executors, self._asks),
            *(self._perform, self._completed, self._after),
            may_begin=self.begins_runs,
        )
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)
        self._runner.open()  # last: it uses all of the above

    @property
    def is_full(self) -> bool:
        """Whether senders should wait before they send more."""
        return self.queued >= self._full

    @property
    def queued(self) -> int:
        return self._brain.queued + self._asks.unsaid

    def queued_by_operator(self) -> dict[str, int]:
        return self._brain.queued_by_operator()

    @property
    def requests_in_flight(self) -> int:
        return self._brain.requests_in_flight

    def busy_s(self) -> dict[str, float]:
        """Seconds busy by operator, the run under way included."""
        found = dict(self.figures.busy_s)
        under_way = self._runner.under_way
        if under_way is not None:
            found[under_way[0]] += time.monotonic() - under_way[1]
        return found

    @property
    def asked_in_hand(self) -> int:
        """Requests for one operator alone that are not answered yet."""
        return len(self._asks)

    async def ask(self, operator: str, inputs: Sequence[Array], timeout_s: float | None) -> Mapping[str, Array]:
        """Run one operator of this worker alone, in its turn among all that waits; what its model gave, by output.

        StatusError when there is too much of this already, it fails, or takes longer than `timeout_s`.
        """
        answer: asyncio.Future[Mapping[str, Array]] = self._loop.create_future()
        request = self.begin_asked(operator, inputs, partial(_settle, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise self.late(operator, timeout_s or 0.0) from error
        finally:
            self.give_up(request)

    def begin_asked(self, operator: str, inputs: Sequence[Array], done: Answered) -> str:
        """As `ask`, without waiting: `done` gets the outputs, or why there are none. StatusError when overloaded."""
        if len(self._asks) >= MAX_ASKED or self.is_full:
            reason = f"overloaded: {self.queued} requests wait, {len(self._asks)} for single operators; try later"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        request = self._asks.add(operator, inputs, done)
        if len(self._asks) == 1:
            self._ask_all()
        elif self._asks.unsaid == 1:  # others may come in this turn of the event loop: they can go together
            self._loop.call_soon(self._ask_all)
        return request

    def _ask_all(self) -> None:
        asks = self._asks.take()
        if asks:
            with self._lock:
                instructions = self._brain.call_operators(asks, time.monotonic())
            self._act(instructions)

    def give_up(self, request: str) -> None:
        """Nobody waits for an operator that was asked for any more."""
        if self._asks.drop(request):
            self._forget(request)

    def late(self, operator: str, timeout_s: float) -> StatusError:
        """Why there is no answer of an operator in time."""
        reason = f"no answer of {operator} within {timeout_s:.3g} s: {self.queued} requests wait"
        return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def abandon_asked(self) -> None:
        """Whoever still waits for one operator alone learns that this worker leaves."""
        error = StatusError(grpc.StatusCode.UNAVAILABLE, f"worker {self._worker.name} is shutting down")
        self._asks.fail_all(error)

    def stop(self) -> None:
        """End the executor thread after the run under way."""
        self._loop.call_soon_threadsafe(self._end_sweeping)
        self._runner.stop()

    def _end_sweeping(self) -> None:
        self._sweeping.cancel()

    def receive(self, wire: agent_pb2.Message, data: Data = b"") -> None:
        """A message from a peer. PlanViewError when it belongs to another plan; other faults fail its request only."""
        if wire.plan != self._view.hash:
            raise PlanViewError(
                f"{self._worker.name} serves plan {self._view.hash[:12]}, the message is of {wire.plan[:12]}"
            )
        if wire.HasField("failure"):
            self._forget(wire.request_id)
        else:
            try:
                message = self._read(wire, data)
            except AgentError as error:
                self._fail(wire.request_id, wire.downstream, str(error), status_of(error))
                self._forget(wire.request_id)
            else:
                with self._lock:
                    instructions = self._brain.received(message, time.monotonic())
                self._act(instructions)

    def _completed(self, run: RunOperator, done: Done | AgentError) -> tuple[RunOperator | None, Aftermath]:
        """Tell the brain of a run: the next one, and what else is to be done. Of both threads."""
        status = grpc.StatusCode.INTERNAL
        answers: dict[str, Mapping[str, Array]] = {}
        with self._lock:
            if isinstance(done, AgentError):
                status = status_of(done)
                self._count_failure(run, done)
                instructions = self._brain.failed(run.run, str(done), time.monotonic())
            else:
                self.figures.done(run, done)
                if is_asked(run):
                    answers = {
                        item.request: outputs.by_downstream
                        for item, outputs in zip(run.items, done.outputs, strict=True)
                    }
                    size = self._asks.together(run.operator, done.busy_s / len(run.items))
                    self._brain.limit_direct_call_batch(run.operator, size)
                instructions = self._brain.completed(run.run, done.outputs, time.monotonic())
        following = [instruction for instruction in instructions if isinstance(instruction, RunOperator)]
        others: list[Instruction] = [found for found in instructions if not isinstance(found, RunOperator)]
        return following[0] if following else None, Aftermath(others, status, answers)

    def _count_failure(self, run: RunOperator, error: AgentError) -> None:
        if is_asked(run):
            self.figures.asked_failed[run.operator] += len(run.items) == 1  # several are run again one by one
            return
        if len(run.items) == 1:
            self.figures.failed[run.operator] += 1
            return
        self.figures.broken[run.operator] += 1
        text = "%s: a run of %d requests of %s failed, each runs again alone: %s"
        LOG.warning(text, self._worker.name, len(run.items), run.operator, error)

    def _after(self, run: Aftermath) -> None:
        self._asks.answer(run.answers)
        self._act(run.instructions, run.status)
        if self._brain.queued <= self._full // 2:
            self.on_room()

    def _act(self, instructions: Sequence[Instruction], status: grpc.StatusCode = grpc.StatusCode.INTERNAL) -> None:
        for instruction in instructions:
            if isinstance(instruction, RunOperator):
                self._runner.start(instruction)
            elif isinstance(instruction, SendMessage):
                self._send(instruction.worker, instruction.message)
            elif isinstance(instruction, RequestFailed):
                why = grpc.StatusCode.RESOURCE_EXHAUSTED if instruction.overloaded else status
                self._fail(instruction.request, instruction.operator, instruction.reason, why)
            elif isinstance(instruction, RequestExpired):
                self.figures.expired[instruction.operator] += 1
            elif isinstance(instruction, WakeAt):
                self._loop.call_later(max(0.0, instruction.until - time.monotonic()), self._due)

    def _due(self) -> None:
        with self._lock:
            instructions = self._brain.due(time.monotonic())
        self._act(instructions)

    def _send(self, worker: str, message: EdgeMessage) -> None:
        try:
            wire, data = self._write(message)
        except AgentError as error:
            self._fail(message.request, message.upstream, str(error), status_of(error))
            self._forget(message.request)
            return
        due_s = 0.0
        if worker != GATEWAY and (tier := self._view.workers[worker].tier) != self._worker.tier:
            due_s = self._links.reserve(self._worker.tier, tier, len(data))
            self.figures.crossed[message.upstream, tier] += len(data)
        self._peers[worker].put(wire, due_s, message.until, data)

    # What `TracedDriver` does more at:

    def _trace_id(self, request: str) -> str:
        return ""

    def _read(self, wire: agent_pb2.Message, data: Data) -> EdgeMessage:
        return read_message(self._view, self._worker.operators, wire, data)

    def _perform(self, run: RunOperator) -> Done:
        return perform(self._view.operators[run.operator], self._executors[run.operator], run.items)

    def _write(self, message: EdgeMessage) -> tuple[agent_pb2.Message, Data]:
        return write_message(self._view.hash, message)

    def _sweep(self) -> None:
        """Drop what is too late: a gateway that died tells nobody that it has given its requests up."""
        now_s = time.monotonic()
        with self._lock:
            instructions = self._brain.expire(now_s)
        self._act(instructions)
        for peer in self._peers.values():
            peer.expire(now_s)
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    @property
    def unsent_expired(self) -> int:
        """Messages that were too late before they could leave."""
        return sum(peer.expired for peer in self._peers.values())

    def lost(self, peer: str, reason: str, undelivered: Sequence[agent_pb2.Message]) -> None:
        """Requests whose messages may not have arrived fail by the name of who is gone; the gateway tries again."""
        for message in {message.request_id: message for message in undelivered}.values():
            text = f"worker {peer} cannot be reached: {reason}"
            self._fail(message.request_id, message.downstream, text, grpc.StatusCode.UNAVAILABLE, peer)
            self._forget(message.request_id)

    def _fail(
        self, request: str, operator: str, reason: str, status: grpc.StatusCode, worker: str | None = None
    ) -> None:
        if request in self._asks:
            self._asks.fail(request, StatusError(status, f"operator {operator}: {reason}"))
            return
        text, trace = "failed: %s", self._trace_id(request)
        LOG.warning(text, reason, extra=_about(request, operator, self._worker.name, trace, status))
        failure = agent_pb2.Failure(
            worker=worker or self._worker.name, operator=operator, reason=reason, status=int(status.value[0])
        )
        self._peers[GATEWAY].put(agent_pb2.Message(request_id=request, failure=failure, plan=self._view.hash))

    def _forget(self, request: str) -> None:
        with self._lock:
            instructions = self._brain.forget(request)
        self._act(instructions)
        for name, peer in self._peers.items():
            if name != GATEWAY:
                peer.forget(request)


def _nothing() -> None:
    pass


def _about(request: str, operator: str, worker: str, trace: str, status: grpc.StatusCode) -> dict[str, dict[str, str]]:
    return log_fields(request_id=request, operator=operator, worker=worker, trace_id=trace, status=status.name)


def _settle(answer: asyncio.Future[Mapping[str, Array]], what: Mapping[str, Array] | AgentError) -> None:
    if answer.done():
        return
    if isinstance(what, AgentError):
        answer.set_exception(what)
    else:
        answer.set_result(what)
