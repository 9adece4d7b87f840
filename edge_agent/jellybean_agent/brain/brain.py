"""The brain of a worker: a pure state machine. Events in, instructions out; no clock, no sockets, no tensors.

It joins the inputs of each request (`input_join`), queues and batches the resulting work items (`run_queue`), runs one
batch at a time and sends the outputs along the DAG (`wiring`). A batch that fails is retried one item at a time, so
that only the faulty requests fail. The agent drives it with gRPC and onnxruntime; the simulator drives it in virtual
time.

Every event carries the current time `now` in seconds: a request whose deadline has passed is dropped before it is run.
Without deadlines and batch delays `now` has no effect.

Messages may arrive in any order and more than once, and request ids are never reused. A bounded number of past requests
is remembered, to recognise their late and repeated messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jellybean_agent.brain.held_inputs import NO_CLAIM, Claim, HeldInputs
from jellybean_agent.brain.input_join import InputJoin
from jellybean_agent.brain.largest_waiting import LargestWaiting
from jellybean_agent.brain.messages import (
    DIRECT_CALL_ROUTE,
    GATEWAY,
    EdgeMessage,
    Instruction,
    Outputs,
    Payload,
    RequestExpired,
    RequestFailed,
    Routes,
    RunOperator,
    SendMessage,
    WorkItem,
)
from jellybean_agent.brain.request_state import PendingInputs, RecentSet, RequestState
from jellybean_agent.brain.route_table import RouteTable
from jellybean_agent.brain.run_queue import BatchPolicy, RunQueue
from jellybean_agent.brain.wiring import OperatorWiring, empty_messages, output_messages

_DEFAULT_POLICY = BatchPolicy()


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Bounds on what a brain remembers.

    `requests`: most requests in flight (None: unbounded); beyond it one fails, so that requests whose inputs never
    arrive cannot fill a worker: the oldest of the sender that has most. `input_bytes`: most bytes of their inputs, by
    the sizes that `received` is told; for more, requests of the sender with most fail that wait for other inputs.
    `given_up`, `joined`: numbers of past requests and of past joins whose late messages are recognised.
    """

    requests: int | None = None
    input_bytes: int | None = None
    given_up: int = 65_536
    joined: int = 16_384


_DEFAULT_LIMITS = MemoryLimits()


@dataclass(frozen=True, slots=True)
class _Running:
    """The run in progress, its start time, and the state of each item's request at that time."""

    run: RunOperator
    states: tuple[RequestState, ...]
    since: float


class Brain:
    """State machine of one worker. Invariant: at most one run is in progress, and one is while any item is due."""

    def __init__(
        self,
        worker: str,
        wiring: Mapping[str, OperatorWiring],
        routes: Routes | RouteTable,
        policy: BatchPolicy = _DEFAULT_POLICY,
        limits: MemoryLimits = _DEFAULT_LIMITS,
    ) -> None:
        self._worker, self._wiring = worker, wiring
        self._routes = routes if isinstance(routes, RouteTable) else RouteTable(routes)
        self._gathers = {(up, name) for name, wires in wiring.items() for up, kind in wires.inputs if kind == "gather"}
        self._max_requests = limits.requests
        self._requests: dict[str, RequestState] = {}
        self._given_up = RecentSet(limits.given_up)
        self._held = HeldInputs(limits.input_bytes)
        self._largest_waiting = LargestWaiting(self._requests)
        self._join = InputJoin(worker, wiring, len(self._routes), limits.joined, self._held)
        self._queue = RunQueue(wiring, policy, self._requests, self._drop)
        self._running: _Running | None = None
        self._next_run = self._next_item = 0
        self._crowded = "", 0  # the sender that had most requests in flight, and how many may fail until it is counted
        self._now = 0.0  # time of the last event

    @property
    def queued(self) -> int:
        """Number of queued items; those of the run in progress do not count."""
        return len(self._queue)

    def queued_of(self, workflow: str) -> int:
        """Number of queued items of a workflow; of all if there is only one."""
        return self._queue.length_of(workflow) if workflow else len(self._queue)

    def queued_by_operator(self) -> dict[str, int]:
        """Operator -> number of its queued items, without those of the run in progress."""
        return self._queue.lengths()

    @property
    def requests_in_flight(self) -> int:
        """Number of requests that wait for inputs, are queued, or are being run on this worker."""
        running = {item.request for item in self._running.run.items} if self._running is not None else set()
        return len(self._requests.keys() | running)

    @property
    def remembered(self) -> tuple[int, int]:
        """(past requests, past joins) that are remembered; at most as many as `MemoryLimits` allow."""
        return len(self._given_up), len(self._join.finished)

    @property
    def held_bytes(self) -> int:
        """Bytes of inputs that wait, are queued or are being run."""
        return self._held.held

    def received(
        self, message: EdgeMessage, now: float = 0.0, *, more: bool = False, claim: Claim = NO_CLAIM
    ) -> Sequence[Instruction]:
        """A message for one of this worker's operators has arrived. Returns what the worker must do now.

        `more`: others follow at once, after which `start` must be called: children that come together share a run.
        `claim`: who has sent the message, and the bytes of its payload.
        """
        self._now = now
        out: list[Instruction] = []
        overloaded = False
        refusal = self._join.refusal(message) or self._misrouted(message)
        if refusal is None and not self._has_room(claim[1], out):
            refusal, overloaded = f"overloaded: inputs of {self._held.held} bytes are kept, which is the limit", True
        if refusal is None:
            self._accept(message, out, claim)
            self._release(message.request)
            if self._max_requests is not None and len(self._requests) > self._max_requests:
                self._fail_oldest(message.downstream, out)
        elif message.request not in self._given_up:
            self._fail(message.request, message.downstream, refusal, out, overloaded=overloaded)
        if not more:
            self._start(out)
        return out

    def _misrouted(self, message: EdgeMessage) -> str | None:
        """Why the route of a message is none of its workflow's, of several; None if it is."""
        if self._routes.covers(message.route, message.downstream):
            return None
        return f"route {message.route} does not lead to {message.downstream!r}: it is of another workflow"

    def start(self, now: float = 0.0) -> Sequence[Instruction]:
        """Start a run, if an item is due and none is in progress."""
        self._now = now
        out: list[Instruction] = []
        self._start(out)
        return out

    def call_operator(
        self, request: str, operator: str, inputs: Sequence[Payload], now: float = 0.0
    ) -> Sequence[Instruction]:
        """A direct call: queue one operator to run outside the pipeline; the caller takes the run's outputs.

        It is never batched with requests of the pipeline, and nothing is sent downstream. `inputs`: one per input edge.
        `request`: an id that was not used before.
        """
        return self.call_operators([(request, operator, inputs)], now)

    def call_operators(
        self, calls: Sequence[tuple[str, str, Sequence[Payload]]], now: float = 0.0
    ) -> Sequence[Instruction]:
        """Several direct calls, (request, operator, inputs) each, that arrived together."""
        self._now = now
        out: list[Instruction] = []
        for request, operator, inputs in calls:
            state = self._requests[request] = RequestState(math.inf)
            number, self._next_item = self._next_item, self._next_item + 1
            self._queue.add(operator, WorkItem(number, request, DIRECT_CALL_ROUTE, (), tuple(inputs)), state, now)
        self._start(out)
        return out

    def limit_direct_call_batch(self, operator: str, size: int) -> None:
        """Let up to `size` direct calls of an operator share a run; 1 until this is called."""
        self._queue.direct_call_batches[operator] = size

    def completed(self, run: int, outputs: Sequence[Outputs], now: float = 0.0) -> Sequence[Instruction]:
        """The run in progress succeeded: send the outputs of its items downstream, in their order; start the next run.

        If `outputs` raise (for example for an output without a leading dimension), the state is unchanged and the
        caller must report the run as `failed`.
        """
        done = self._running
        if done is None or done.run.run != run:
            return ()
        self._now = now
        operator = done.run.operator
        wiring = self._wiring[operator]
        messages = [
            message
            for item, state, of_item in zip(done.run.items, done.states, outputs, strict=True)
            if self._is_in_flight(item, state)
            for message in output_messages(operator, wiring, item, state.until, of_item)
        ]
        self._queue.charge(operator, now - done.since)
        self._running = None
        out: list[Instruction] = []
        for message in messages:
            self._forward(message, out)
        for item in done.run.items:
            self._held.give(item.claims)
            self._release(item.request)
        self._start(out)
        return out

    def failed(self, run: int, reason: str, now: float = 0.0) -> Sequence[Instruction]:
        """The run in progress failed: a single item fails its request, the items of a batch are retried one by one."""
        done = self._running
        if done is None or done.run.run != run:
            return ()
        self._now = now
        operator = done.run.operator
        self._queue.charge(operator, now - done.since)
        self._running = None
        out: list[Instruction] = []
        for item, state in zip(reversed(done.run.items), reversed(done.states), strict=True):
            if self._is_in_flight(item, state):
                if len(done.run.items) > 1:
                    self._queue.retry(operator, item, state)
                    continue
                self._fail(item.request, operator, reason, out)
            self._held.give(item.claims)
        self._start(out)
        return out

    def due(self, now: float) -> Sequence[Instruction]:
        """The time `until` of a `WakeAt` instruction has come."""
        self._now = now
        self._queue.woken()
        out: list[Instruction] = []
        self._start(out)
        return out

    def forget(self, request: str) -> Sequence[Instruction]:
        """Drop a request, because the gateway has given it up. If it is being run, its outputs will be discarded."""
        self._drop(request)
        return ()

    def expire(self, now: float) -> Sequence[Instruction]:
        """Drop every request whose deadline has passed, also those that wait for inputs: the gateway may be dead."""
        late = [request for request, state in self._requests.items() if state.until <= now]
        for request in late:
            self._drop(request)
        return [RequestExpired(request, "") for request in late]

    def _drop(self, request: str) -> None:
        self._given_up.add(request)
        state = self._requests.pop(request, None)
        if state is None:
            return
        for operator, number in state.queued:
            self._held.give(self._queue.remove(operator, number).claims)
        for pending in state.pending.values():
            self._held.give(pending.claims.items())

    def _fail(
        self, request: str, operator: str, reason: str, out: list[Instruction], *, overloaded: bool = False
    ) -> None:
        self._drop(request)
        out.append(RequestFailed(request, operator, reason, overloaded))

    def _fail_oldest(self, default_operator: str, out: list[Instruction]) -> None:
        """Fail the oldest request of the sender that has most in flight, to stay within the limit.

        `default_operator`: named if it has no other.
        """
        most = self._crowded_sender()
        theirs = (name for name, state in self._requests.items() if state.sender == most)
        oldest = next(theirs, None) or next(iter(self._requests))
        state = self._requests[oldest]
        operator = next((operator for operator, _ in (*state.pending, *state.queued)), default_operator)
        reason = f"overloaded: {self._max_requests} newer requests are in flight"
        self._fail(oldest, operator, reason, out, overloaded=True)

    def _crowded_sender(self) -> str:
        """The sender with most requests in flight: once counted, it is so for half as many failures as it leads by."""
        sender, failures = self._crowded
        if not failures:
            first, second = (*Counter(state.sender for state in self._requests.values()).most_common(2), ("", 0))[:2]
            sender, failures = first[0], max(1, (first[1] - second[1]) // 2)
        self._crowded = sender, failures - 1
        return sender

    def _has_room(self, size: int, out: list[Instruction]) -> bool:
        """True if the worker may keep so many bytes more; requests that wait for other inputs may fail for them.

        Those that hold most of the sender whose messages take most: a request that is complete runs soon.
        """
        while not self._held.fits(size):
            most = self._held.largest()
            if most is None or (request := self._largest_waiting.take(most)) is None:
                return False
            operator = next(iter(self._requests[request].pending))[0]
            reason = f"overloaded: inputs of {self._held.held} bytes are kept, and newer ones need the memory"
            self._fail(request, operator, reason, out, overloaded=True)
        return True

    def _is_in_flight(self, item: WorkItem, state: RequestState) -> bool:
        """True if the item's request is still in flight: not given up, failed or expired since its run started."""
        return self._requests.get(item.request) is state

    def _release(self, request: str) -> None:
        """Remove the request's state if it waits for no input and has no queued or running item."""
        state = self._requests.get(request)
        if state is None or state.pending or state.queued:
            return
        if self._running is None or not any(running is state for running in self._running.states):
            del self._requests[request]

    def _start(self, out: list[Instruction]) -> None:
        """Start the next batch unless a run is in progress."""
        if self._running is not None:
            return
        batch = self._queue.next_batch(self._now, out)
        if batch is None:
            return
        operator, items = batch
        run, self._next_run = RunOperator(self._next_run, operator, tuple(items)), self._next_run + 1
        self._running = _Running(run, tuple(self._requests[item.request] for item in items), self._now)
        out.append(run)

    def _forward(self, message: EdgeMessage, out: list[Instruction]) -> None:
        """Send a message to its next worker by the route; if that is this worker, accept it without sending."""
        downstream = message.downstream
        if downstream == GATEWAY:
            worker = GATEWAY
        else:
            gathers = (message.upstream, downstream) in self._gathers
            path = message.path[:-1] if gathers else message.path
            worker = self._routes.worker(message.route, downstream, path, message.request)
        if worker == self._worker:
            self._accept(message, out)
        else:
            out.append(SendMessage(worker, message))

    def _accept(self, message: EdgeMessage, out: list[Instruction], claim: Claim = NO_CLAIM) -> None:
        """Join an input; queue a work item once all inputs of its operator are there."""
        request, operator = message.request, message.downstream
        if request in self._given_up:
            return
        joined = self._join.add(message, self._requests, claim)
        if isinstance(joined, PendingInputs):
            state = self._requests[request]
            if any(count == 0 for _, count in joined.path):
                self._held.give(joined.claims.items())
                for marker in empty_messages(self._wiring[operator], message, joined.path, state.until):
                    self._forward(marker, out)
                return
            number, self._next_item = self._next_item, self._next_item + 1
            inputs = self._join.inputs(operator, joined)
            claims = tuple(joined.claims.items())
            item = WorkItem(number, request, message.route, joined.path, inputs, message.position, claims)
            self._queue.add(operator, item, state, self._now)
        elif joined is not None:
            self._fail(request, operator, joined, out)
