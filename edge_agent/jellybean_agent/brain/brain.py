"""The brain of a worker: a pure state machine. Events in, instructions out; no clock, no sockets, no tensors.

It joins the inputs of a request, waits for the children of a fan-out, keeps a first-come-first-served queue and runs
one thing at a time. When it is free it takes the first that waits and with it, up to the operator's batch size, what
else waits for the same operator; it waits for more only where the operator has a delay, and never beyond it. A batch
that fails runs again one by one, so that only the requests that are to blame fail. While many wait, operators take
turns by their planned load, so that one that is offered too much does not hold up the others. The agent drives it with
gRPC and onnxruntime; the simulator drives it in virtual time.

Time comes in with events: a request whose time is up by `now` is dropped before it takes a run; without deadlines `now`
changes nothing.

Messages may come in any order and more than once. Request ids are never used twice: what is remembered of requests
that are over (to ignore late and repeated messages) is bounded, so a worker's memory is too.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jellybean_agent.brain.messages import (
    DIRECT_CALL_ROUTE,
    GATEWAY,
    EdgeMessage,
    FanOutPath,
    Instruction,
    Outputs,
    Payload,
    RequestExpired,
    RequestFailed,
    Routes,
    RunOperator,
    SendMessage,
    WakeAt,
    WorkItem,
)

EdgeKind = Literal["each", "fan_out", "gather"]
Indices = tuple[int, ...]
Key = tuple[str, Indices]  # operator, child index per fan-out that is open at the operator

FAIR_FROM = 32  # items that wait: as many and more are shared out by planned load, fewer are served as they came
FORGOTTEN = 65_536  # request ids given up that a worker remembers
_LEAST_SHARE = 0.01  # of all shares: what is planned to take no time is no reason to wait for ever
DONE = 16_384  # inputs already turned into runs or markers that a worker remembers


@dataclass(frozen=True, slots=True)
class OperatorWiring:
    """An operator's place in the DAG: (upstream, kind) per input edge, (downstream, kind) per output edge."""

    inputs: tuple[tuple[str, EdgeKind], ...]
    outputs: tuple[tuple[str, EdgeKind], ...]  # empty for a sink: its output is the answer


@dataclass(slots=True)
class _Pending:
    """Inputs of one request at one operator that have arrived, by input edge and child index."""

    path: FanOutPath
    arrived: dict[str, dict[int, Payload]] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)  # input edge -> number of messages to wait for


@dataclass(slots=True, eq=False)
class _Request:
    """What is in hand of one request. Dropped as soon as there is nothing, or it is too late."""

    until: float
    pending: dict[Key, _Pending] = field(default_factory=dict)
    queued: set[tuple[str, int]] = field(default_factory=set)  # operator and number of its items that wait


@dataclass(frozen=True, slots=True)
class _Running:
    """The outstanding run, and the state of each item's request when it started."""

    run: RunOperator
    states: tuple[_Request, ...]


class Brain:
    """State machine of one worker. Invariant: at most one Run is outstanding, and one is while any items are due.

    `shares`: operator -> fraction of the time that it is planned to take; while many items wait, operators get turns by
    these. `delays`: operator -> how long the first of its items may wait for others; an item is due then, or when a
    batch is full; where it is left out, at once. `batches`: operator -> most items per run; 1 where it is left out.
    `most`: requests in hand; beyond it the oldest fails, so that inputs whose others never come cannot fill a worker.
    """

    def __init__(
        self,
        worker: str,
        wiring: Mapping[str, OperatorWiring],
        routes: Routes,
        batches: Mapping[str, int] | None = None,
        most: int | None = None,
        delays: Mapping[str, float] | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        self._most = most
        self._delays = delays or {}
        least = sum((shares or {}).values()) * _LEAST_SHARE
        self._shares = {operator: max(share, least) for operator, share in (shares or {}).items()} if least else {}
        self._used: dict[str, float] = {}  # while many wait: operator that waits -> seconds it had, over its share
        self._began = 0.0  # the outstanding run
        self._now = 0.0  # of the last event
        self._since: dict[int, float] = {}  # item of an operator with a delay -> when it became ready
        self._wait: float | None = None  # what was asked for last, and did not come yet
        self._worker = worker
        self._wiring = wiring
        self._routes = routes
        self._batches = batches or {}
        self._kind = {(up, op): kind for op, wires in wiring.items() for up, kind in wires.inputs}
        self._requests: dict[str, _Request] = {}
        # Invariant: each operator's queue is in ascending order of numbers, so those whose batch failed stand in front.
        self._queues: dict[str, OrderedDict[int, WorkItem]] = {operator: OrderedDict() for operator in wiring}
        self._alone: set[int] = set()  # items that share no run: their batch failed, or they are on no route
        self._again: set[int] = set()  # of these, those whose batch failed
        self.together: dict[str, int] = {}  # operator -> how many that were asked for one by one may go into one run
        self._running: _Running | None = None
        self._next_run = self._next_item = 0
        self._forgotten = _Recent(FORGOTTEN)
        self._done = _Recent(DONE)

    @property
    def queued(self) -> int:
        """Items that wait, the running ones not counted."""
        return sum(map(len, self._queues.values()))

    def queued_by_operator(self) -> dict[str, int]:
        """As `queued`, by operator."""
        return {operator: len(queue) for operator, queue in self._queues.items()}

    @property
    def requests_in_hand(self) -> int:
        """Requests with anything here: waiting for inputs, queued or running."""
        running = {item.request for item in self._running.run.items} if self._running is not None else set()
        return len(self._requests.keys() | running)

    def received(self, message: EdgeMessage, now: float = 0.0) -> Sequence[Instruction]:
        """A message for one of this worker's operators has come."""
        self._now = now
        out: list[Instruction] = []
        refusal = self._refusal(message)
        if refusal is None:
            self._accept(message, out)
            self._settle(message.request)
            if self._most is not None and len(self._requests) > self._most:
                oldest, state = next(iter(self._requests.items()))
                where = next((operator for operator, _ in (*state.pending, *state.queued)), message.downstream)
                self._drop(oldest)
                reason = f"overloaded: {self._most} newer requests are in hand"
                out.append(RequestFailed(oldest, where, reason, overloaded=True))
        elif message.request not in self._forgotten:
            self._fail(message.request, message.downstream, refusal, out)
        self._start(out, now)
        return out

    def ask(self, request: str, operator: str, inputs: Sequence[Payload], now: float = 0.0) -> Sequence[Instruction]:
        """Run one operator by itself, in its turn: nothing is sent on, whoever asked takes the run's outputs.

        It shares no run with requests of the pipeline. `inputs`: one per input edge; `request` is new.
        """
        return self.ask_all([(request, operator, inputs)], now)

    def ask_all(self, asks: Sequence[tuple[str, str, Sequence[Payload]]], now: float = 0.0) -> Sequence[Instruction]:
        """The same for several that came at once, in their order."""
        self._now = now
        out: list[Instruction] = []
        for request, operator, inputs in asks:
            state = self._requests[request] = _Request(math.inf)
            number, self._next_item = self._next_item, self._next_item + 1
            self._enqueue(operator, WorkItem(number, request, DIRECT_CALL_ROUTE, (), tuple(inputs)), state)
            self._alone.add(number)
        self._start(out, now)
        return out

    def completed(self, run: int, outputs: Sequence[Outputs], now: float = 0.0) -> Sequence[Instruction]:
        """The outstanding run is done: send its items' outputs on, in their order; start the next.

        When `outputs` raise (an output without a leading dimension, say) nothing has changed: report `failed`.
        """
        if self._running is None or self._running.run.run != run:
            return ()
        self._now = now
        done = self._running
        out: list[Instruction] = []
        messages = [
            message
            for item, state, of in zip(done.run.items, done.states, outputs, strict=True)
            if self._in_hand(item, state)
            for message in self._outgoing(done.run.operator, item, state.until, of)
        ]
        self._charge(done.run.operator, now)
        self._running = None
        for message in messages:
            self._hand_on(message, out)
        for item in done.run.items:
            self._settle(item.request)
        self._start(out, now)
        return out

    def failed(self, run: int, reason: str, now: float = 0.0) -> Sequence[Instruction]:
        """The outstanding run failed: with one item its whole request does, several run again one by one."""
        if self._running is None or self._running.run.run != run:
            return ()
        self._now = now
        self._charge(self._running.run.operator, now)
        done = self._running
        out: list[Instruction] = []
        operator = done.run.operator
        self._running = None
        for item, state in zip(reversed(done.run.items), reversed(done.states), strict=True):
            if self._in_hand(item, state):
                if len(done.run.items) > 1:
                    self._enqueue(operator, item, state, again=True)
                else:
                    self._fail(item.request, operator, reason, out)
        self._start(out, now)
        return out

    def due(self, now: float) -> Sequence[Instruction]:
        """The time of a Wait has come."""
        self._now, self._wait = now, None
        out: list[Instruction] = []
        self._start(out, now)
        return out

    def forget(self, request: str) -> Sequence[Instruction]:
        """The gateway has given the request up: free what waits for it. A run under way ends and leads nowhere."""
        self._drop(request)
        return ()

    def expire(self, now: float) -> Sequence[Instruction]:
        """Drop every request that is too late, whatever it waits for: nobody may be left to say so."""
        late = [request for request, state in self._requests.items() if state.until <= now]
        for request in late:
            self._drop(request)
        return [RequestExpired(request, "") for request in late]

    def _drop(self, request: str) -> None:
        self._forgotten.add(request)
        state = self._requests.pop(request, None)
        for operator, number in state.queued if state else ():
            del self._queues[operator][number]
            self._alone.discard(number)
            self._again.discard(number)
            self._since.pop(number, None)

    def _in_hand(self, item: WorkItem, state: _Request) -> bool:
        """Whether an item's request was neither given up nor failed since its run started."""
        return self._requests.get(item.request) is state

    def _fail(self, request: str, operator: str, reason: str, out: list[Instruction]) -> None:
        self._drop(request)
        out.append(RequestFailed(request, operator, reason))

    def _settle(self, request: str) -> None:
        """Drop the request's state when nothing of it is in hand."""
        state = self._requests.get(request)
        if state is None or state.pending or state.queued:
            return
        if self._running is None or not any(running is state for running in self._running.states):
            del self._requests[request]

    def _start(self, out: list[Instruction], now: float) -> None:
        """When free: the item that became ready first, and others of its operator in their order, up to a batch."""
        if self._running is not None:
            return
        self._drop_late(out, now)
        waiting = sorted([(next(iter(queue)), operator) for operator, queue in self._queues.items() if queue])
        if self._delays:
            waiting = self._due_by(waiting, out, now)
        if not waiting:
            return
        first, operator = self._next_turn(waiting)
        queue = self._queues[operator]
        items: list[WorkItem] = []
        if first in self._alone:
            others = min((number for number, other in waiting if other != operator), default=math.inf)
            items = self._take_alone(operator, first, others)
        else:
            most = self._batches.get(operator, 1)
            while queue and len(items) < most and (not items or next(iter(queue)) not in self._alone):
                items.append(queue.popitem(last=False)[1])
                self._drop_late(out, now, operator)
        for item in items:
            self._requests[item.request].queued.remove((operator, item.number))
            self._since.pop(item.number, None)
        run, self._next_run = RunOperator(self._next_run, operator, tuple(items)), self._next_run + 1
        self._running = _Running(run, tuple(self._requests[item.request] for item in items))
        self._began = now
        out.append(run)

    def _next_turn(self, waiting: list[tuple[int, str]]) -> tuple[int, str]:
        """Of the first items of queues: the one that became ready first, or, while many wait, fair queueing.

        Then it is the operator's that had the least time for its share since it waits. Who comes is behind nobody, and
        has saved nothing up: so one that is offered too much delays the others by a run, not by its queue.
        """
        if len(waiting) == 1 or not self._shares or self.queued < FAIR_FROM:
            self._used.clear()
            return waiting[0]
        level = min((self._used[operator] for _, operator in waiting if operator in self._used), default=0.0)
        self._used = {operator: self._used.get(operator, level) for _, operator in waiting}
        return min(waiting, key=lambda one: (self._used[one[1]], one[0]))

    def _charge(self, operator: str, now: float) -> None:
        """A run is over: its operator had that time."""
        if operator in self._used:
            self._used[operator] += (now - self._began) / self._shares[operator]

    def _take_alone(self, operator: str, first: int, others: float) -> list[WorkItem]:
        """The first item, and those asked for right behind it, before `others`: nobody is overtaken by it."""
        queue = self._queues[operator]
        most = self.together.get(operator, 1) if first not in self._again else 1
        items: list[WorkItem] = []
        while queue and len(items) < most:
            number, item = next(iter(queue.items()))
            if items and (item.route != DIRECT_CALL_ROUTE or number in self._again or number > others):
                break
            del queue[number]
            items.append(item)
            self._alone.discard(number)
            self._again.discard(number)
            if item.route != DIRECT_CALL_ROUTE:
                break
        return items

    def _due_by(self, waiting: list[tuple[int, str]], out: list[Instruction], now: float) -> list[tuple[int, str]]:
        """Of the first items of queues those that wait for no further one. None: says until when, once."""
        until = {
            (number, operator): -math.inf
            if number in self._alone or len(self._queues[operator]) >= self._batches.get(operator, 1)
            else self._since[number] + self._delays[operator]
            if number in self._since
            else -math.inf
            for number, operator in waiting
        }
        found = [one for one in waiting if until[one] <= now]
        if waiting and not found and self._wait != (first := min(until.values())):
            self._wait = first
            out.append(WakeAt(first))
        return found

    def _drop_late(self, out: list[Instruction], now: float, *operators: str) -> None:
        """Until the first item of each queue (of `operators`, or all) is in time."""
        for operator in operators or self._queues:
            queue = self._queues[operator]
            while queue and self._requests[(request := next(iter(queue.values())).request)].until <= now:
                self._drop(request)
                out.append(RequestExpired(request, operator))

    def _enqueue(self, operator: str, item: WorkItem, state: _Request, *, again: bool = False) -> None:
        """Last in its operator's queue; `again`: first, and alone."""
        self._queues[operator][item.number] = item
        if operator in self._delays and not again:
            self._since[item.number] = self._now
        state.queued.add((operator, item.number))
        if again:
            self._queues[operator].move_to_end(item.number, last=False)
            self._alone.add(item.number)
            self._again.add(item.number)

    def _refusal(self, message: EdgeMessage) -> str | None:
        """Why a message cannot be taken: the sender has another plan, or is broken."""
        edge = (message.upstream, message.downstream)
        if edge not in self._kind:
            return f"worker {self._worker} knows no edge from {edge[0]!r} to {edge[1]!r}"
        if not 0 <= message.route < len(self._routes):
            return f"route {message.route} does not exist: the plan has {len(self._routes)}"
        if self._kind[edge] == "gather" and not message.path:
            return f"{edge[1]!r} gathers the children of {edge[0]!r}, but the message is of no child"
        if any(not 0 <= index < max(count, 1) for index, count in message.path):
            return f"the message from {edge[0]!r} to {edge[1]!r} is of a child that cannot be: {message.path}"
        return None

    def _outgoing(self, operator: str, item: WorkItem, until: float, outputs: Outputs) -> list[EdgeMessage]:
        """The messages of a finished item, children in order."""
        if item.route == DIRECT_CALL_ROUTE:
            return []
        messages = []
        for downstream, kind in self._wiring[operator].outputs or ((GATEWAY, "each"),):
            parts: list[tuple[FanOutPath, Payload]]
            if kind != "fan_out":
                parts = [(item.path, outputs.take(downstream, None))]
            elif (count := outputs.rows(downstream)) > 0:
                parts = [((*item.path, (row, count)), outputs.take(downstream, row)) for row in range(count)]
            else:
                parts = [((*item.path, (0, 0)), None)]
            messages += [
                EdgeMessage(item.request, item.route, operator, downstream, path, payload, until)
                for path, payload in parts
            ]
        return messages

    def _hand_on(self, message: EdgeMessage, out: list[Instruction]) -> None:
        """To whoever the request's route names: itself without detour, so that a message never leaves in vain."""
        downstream = message.downstream
        worker = GATEWAY if downstream == GATEWAY else self._routes[message.route][downstream]
        if worker == self._worker:
            self._accept(message, out)
        else:
            out.append(SendMessage(worker, message))

    def _accept(self, message: EdgeMessage, out: list[Instruction]) -> None:
        operator, request = message.downstream, message.request
        gather = self._kind[message.upstream, operator] == "gather"
        path = message.path[:-1] if gather else message.path
        index, count = message.path[-1] if gather else (0, 1)
        key = (operator, tuple([position[0] for position in path]))
        if (request, *key) in self._done or request in self._forgotten:
            return
        state = self._requests.get(request)
        if state is None:
            state = self._requests[request] = _Request(message.until)
        state.until = max(state.until, message.until)
        pending = state.pending.get(key)
        if pending is None:
            pending = state.pending[key] = _Pending(path)
        if pending.path != path or pending.children.setdefault(message.upstream, count) != count:
            reason = f"inputs of {operator!r} disagree about the number of children: {pending.path} and {message.path}"
            self._fail(request, operator, reason, out)
            return
        arrived = pending.arrived.setdefault(message.upstream, {})
        if count:
            arrived.setdefault(index, message.payload)  # a second copy of the same input changes nothing
        if self._is_complete(operator, pending):
            del state.pending[key]
            self._done.add((request, *key))
            self._ready(message, pending, state, out)

    def _is_complete(self, operator: str, pending: _Pending) -> bool:
        children, arrived = pending.children, pending.arrived
        inputs = self._wiring[operator].inputs
        return len(children) == len(inputs) and all(len(arrived[up]) == count for up, count in children.items())

    def _ready(self, last: EdgeMessage, pending: _Pending, state: _Request, out: list[Instruction]) -> None:
        """All inputs are here. No child came this way: nothing to run, but who waits for children below must learn."""
        operator, wires = last.downstream, self._wiring[last.downstream]
        if any(count == 0 for _, count in pending.path):
            for downstream, kind in wires.outputs or ((GATEWAY, "each"),):
                below = (*pending.path, (0, 0)) if kind == "fan_out" else pending.path
                self._hand_on(
                    EdgeMessage(last.request, last.route, operator, downstream, below, until=state.until), out
                )
            return
        inputs = tuple(
            tuple(payload for _, payload in sorted(pending.arrived[upstream].items(), key=_index))
            if kind == "gather"
            else pending.arrived[upstream][0]
            for upstream, kind in wires.inputs
        )
        number, self._next_item = self._next_item, self._next_item + 1
        self._enqueue(operator, WorkItem(number, last.request, last.route, pending.path, inputs), state)


class _Recent:
    """The last `limit` things added: a set that forgets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, item: Hashable) -> None:
        self._items[item] = None
        if len(self._items) > self._limit:
            self._items.popitem(last=False)

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items


def _index(item: tuple[int, Payload]) -> int:
    return item[0]
