"""Drives a worker's brain: messages in, one executor thread, messages out.

Receiving and sending happen in the event loop. The executor thread tells the brain itself what it has finished and
takes the next run at once, so that the worker does not idle while the loop encodes and sends; a lock keeps the brain
whole.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import grpc

from jellybean_agent.brain import Brain
from jellybean_agent.errors import (
    AgentError,
    InvalidInputError,
    PermanentError,
    PlanViewError,
    StatusError,
    status_of,
)
from jellybean_agent.executor import Executor, RunResult
from jellybean_agent.links import EmulatedLinks
from jellybean_agent.logs import about
from jellybean_agent.messages import (
    ALONE,
    GATEWAY,
    Expired,
    Failed,
    Instruction,
    Item,
    Message,
    Outputs,
    Path,
    Payload,
    Run,
    Send,
    Wait,
)
from jellybean_agent.peers import Peer
from jellybean_agent.plan_view import OperatorView, PlanView
from jellybean_agent.stacking import split, stacked
from jellybean_agent.tensors import Array, decode, encode
from jellybean_agent.timers import Timer
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
MAX_CHILDREN = 65536  # of one fan-out
MAX_REQUESTS = 16_384  # in hand; a gateway has fewer
MAX_LEFT_S = 3600.0  # nobody waits longer for an answer, whatever a message says
_FULL = 64  # items waiting where credit stops, or two batches if that is more; at half of it, it comes back
_SWEEP_S = 1.0  # how often what is too late is dropped, whatever it waits for
_TOGETHER_S = 1e-3  # of requests for one operator alone, in one run
_FORGETS = 1.02  # by which the shortest run counts for longer, with each that comes
_PATIENCE_S = 150e-6  # looking for an answer costs less than to be woken by it, of the quickest models
_GAP_S = 30e-6  # since the answer before: others wait to be read where it is less
MAX_ASKED = _FULL // 2  # requests for one operator alone, so that they cannot fill the queue


Found = TypeVar("Found")
Answered = Callable[[Mapping[str, Array] | AgentError], None]


class RunOutputs(Outputs, Protocol):
    """What a run produced for one item, and all of it."""

    @property
    def by_downstream(self) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class TensorOutputs:
    """What a run produced, as the brain asks for it."""

    by_downstream: Mapping[str, Array]

    def rows(self, downstream: str) -> int:
        return int(self.by_downstream[downstream].shape[0])

    def take(self, downstream: str, row: int | None) -> Payload:
        array = self.by_downstream[downstream]
        return array if row is None else array[row : row + 1]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished run: what each item gets, and the sizes in which the model really ran."""

    outputs: Sequence[RunOutputs]
    sizes: Sequence[int]
    busy_s: float
    late_s: float


class Figures:
    """What this worker has done, by operator: requests completed and failed, seconds busy, runs by size.

    `broken`: batches that failed and ran again one by one. `late_s`: seconds that runs took longer than on the device
    that is emulated. `asked`, `asked_failed`: requests for the operator alone; the seconds are of these too.
    `expired`: requests that were too late and took no run; under the empty name those that waited for inputs.
    `crossed`: bytes of outputs that left for another tier, by operator and tier.
    """

    def __init__(self, operators: Iterable[str]) -> None:
        names = tuple(operators)
        self.completed = dict.fromkeys(names, 0)
        self.failed = dict.fromkeys(names, 0)
        self.broken = dict.fromkeys(names, 0)
        self.busy_s = dict.fromkeys(names, 0.0)
        self.late_s = dict.fromkeys(names, 0.0)
        self.runs = {name: Counter[int]() for name in names}
        self.asked = dict.fromkeys(names, 0)
        self.asked_failed = dict.fromkeys(names, 0)
        self.expired = dict.fromkeys((*names, ""), 0)
        self.crossed = Counter[tuple[str, str]]()

    def done(self, run: Run, done: Done) -> None:
        self.busy_s[run.operator] += done.busy_s
        self.late_s[run.operator] += done.late_s
        if _is_asked(run):
            self.asked[run.operator] += len(done.outputs)
        else:
            self.completed[run.operator] += len(done.outputs)
            self.runs[run.operator].update(done.sizes)


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
        self._brain = Brain(
            worker, own, view.routes, self._worker.batches, MAX_REQUESTS, self._worker.delays, self._worker.loads
        )
        self._full = max(_FULL, 2 * max(self._worker.batches.values(), default=1))
        self._lock = threading.Lock()  # of the brain: the event loop receives, the executor thread completes
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._under_way: tuple[str, float] | None = None  # operator, since when: written by the executor thread
        self._asked: dict[str, Answered] = {}  # by request; of the event loop
        self._asking: list[tuple[str, str, Sequence[Array]]] = []  # of these, what the brain does not know of yet
        self._shortest_s: dict[str, float] = {}  # of late, of runs of an operator that was asked for alone
        self._answered_s = 0.0  # when one was answered last
        self._impatience = 0  # how often in a row looking for an answer at once was in vain
        self._asked_numbers = itertools.count()
        self.figures = Figures(own)
        self.on_room: Callable[[], None] = _nothing  # called while the queue is short
        self._timer = Timer(self._loop)  # of an emulated device
        self._thread = threading.Thread(target=self._execute, name=f"executor of {worker}", daemon=True)
        self._thread.start()  # last: it uses all of the above
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    @property
    def is_full(self) -> bool:
        """Whether senders should wait before they send more."""
        return self.queued >= self._full

    @property
    def queued(self) -> int:
        return self._brain.queued + len(self._asking)

    def queued_by_operator(self) -> dict[str, int]:
        return self._brain.queued_by_operator()

    @property
    def requests_in_hand(self) -> int:
        return self._brain.requests_in_hand

    def busy_s(self) -> dict[str, float]:
        """Seconds busy by operator, the run under way included."""
        found = dict(self.figures.busy_s)
        under_way = self._under_way
        if under_way is not None:
            found[under_way[0]] += time.monotonic() - under_way[1]
        return found

    @property
    def asked_in_hand(self) -> int:
        """Requests for one operator alone that are not answered yet."""
        return len(self._asked)

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
        if len(self._asked) >= MAX_ASKED or self.is_full:
            reason = f"overloaded: {self.queued} requests wait, {len(self._asked)} for single operators; try later"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        request = f"asked-{next(self._asked_numbers)}"  # the gateway's keys look otherwise
        self._asked[request] = done
        self._asking.append((request, operator, inputs))
        if len(self._asked) == 1:
            self._ask_all()
        elif len(self._asking) == 1:  # others may come in this turn of the event loop: they can go together
            self._loop.call_soon(self._ask_all)
        return request

    def _ask_all(self) -> None:
        asking, self._asking = self._asking, []
        if asking:
            with self._lock:
                instructions = self._brain.ask_all(asking, time.monotonic())
            self._act(instructions)

    def give_up(self, request: str) -> None:
        """Nobody waits for an operator that was asked for any more."""
        if self._asked.pop(request, None) is not None:
            self._asking = [ask for ask in self._asking if ask[0] != request]
            self._forget(request)

    def late(self, operator: str, timeout_s: float) -> StatusError:
        """Why there is no answer of an operator in time."""
        reason = f"no answer of {operator} within {timeout_s:.3g} s: {self.queued} requests wait"
        return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def abandon_asked(self) -> None:
        """Whoever still waits for one operator alone learns that this worker leaves."""
        error = StatusError(grpc.StatusCode.UNAVAILABLE, f"worker {self._worker.name} is shutting down")
        asked, self._asked, self._asking = self._asked, {}, []
        for done in asked.values():
            done(error)

    def stop(self) -> None:
        """End the executor thread after the run under way."""
        self._loop.call_soon_threadsafe(self._end_timers)
        self._stopping = True
        self._runs.put(None)
        self._thread.join()

    def _end_timers(self) -> None:
        self._sweeping.cancel()
        self._timer.close()

    def receive(self, wire: agent_pb2.Message) -> None:
        """A message from a peer. PlanViewError when it belongs to another plan; other faults fail its request only."""
        if wire.plan != self._view.hash:
            raise PlanViewError(
                f"{self._worker.name} serves plan {self._view.hash[:12]}, the message is of {wire.plan[:12]}"
            )
        if wire.HasField("failure"):
            self._forget(wire.request_id)
        else:
            try:
                message = self._read(wire)
            except AgentError as error:
                self._fail(wire.request_id, wire.downstream, str(error), status_of(error))
                self._forget(wire.request_id)
            else:
                with self._lock:
                    instructions = self._brain.received(message, time.monotonic())
                self._act(instructions)

    def _execute(self) -> None:
        """The executor thread: one run after another, the next one without a detour through the event loop."""
        run = self._runs.get()
        while run is not None and not self._stopping:
            self._under_way = (run.operator, time.monotonic())
            done = self._tried(run, partial(self._perform, run))
            self._under_way = None
            following = self._finished(run, done)
            if following is not None:
                self._go_on(run, following)
            run = following or self._runs.get()

    def _finished(self, run: Run, done: Done | AgentError) -> Run | None:
        """Tell the brain, hand what is to be sent to the event loop; the next run if there is one."""
        run_next, others, status, answers = self._completed(run, done)
        if run_next is not None and self.begins_runs and self._executors[run_next.operator].may_begin:
            others, run_next = [run_next, *others], None  # the event loop has it begin
        try:
            self._loop.call_soon_threadsafe(self._after, others, status, answers)
        except RuntimeError:  # the loop was closed: nobody is left to be told
            self._stopping = True
            self._runs.put(None)
            return None
        return run_next

    def _completed(
        self, run: Run, done: Done | AgentError
    ) -> tuple[Run | None, list[Instruction], grpc.StatusCode, Mapping[str, Mapping[str, Array]]]:
        """Tell the brain of a run: the next one, what else is to be done, and answers to who asked for it alone."""
        status = grpc.StatusCode.INTERNAL
        answers: dict[str, Mapping[str, Array]] = {}
        with self._lock:
            if isinstance(done, AgentError):
                status = status_of(done)
                self._count_failure(run, done)
                instructions = self._brain.failed(run.run, str(done), time.monotonic())
            else:
                self.figures.done(run, done)
                if _is_asked(run):
                    answers = {
                        item.request: outputs.by_downstream
                        for item, outputs in zip(run.items, done.outputs, strict=True)
                    }
                    self._brain.together[run.operator] = self._together(run.operator, done.busy_s / len(run.items))
                instructions = self._brain.completed(run.run, done.outputs, time.monotonic())
        following = [instruction for instruction in instructions if isinstance(instruction, Run)]
        others: list[Instruction] = [found for found in instructions if not isinstance(found, Run)]
        return following[0] if following else None, others, status, answers

    def _start(self, run: Run) -> None:
        """Have the host do it, without a thread between; else the executor thread, which may wait."""
        executor = self._executors[run.operator]
        if self._stopping or not self.begins_runs or not executor.may_begin:
            self._runs.put(run)
            return
        operator = self._view.operators[run.operator]
        now_s = time.monotonic()
        self._under_way = (run.operator, now_s)
        patience_s = self._patience_s(run, now_s)
        is_over = False

        def begin() -> None:
            alone = _is_asked(run) or len(run.items) == 1
            inputs = None if alone else stacked([item.inputs for item in run.items])
            requests = [item.inputs for item in run.items] if inputs is None else [inputs]
            size = 1 if inputs is None else len(run.items)
            executor.begin(requests, ended, self._timer.call_at, size=size, patience_s=patience_s)

        def ended(found: Sequence[RunResult] | AgentError) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            done = (
                found if isinstance(found, AgentError) else self._tried(run, partial(_collected, operator, run, found))
            )
            self._under_way = None
            self._ended(run, done)

        error = self._tried(run, begin)
        if error is not None:
            self._loop.call_soon(ended, error)
        elif patience_s:
            self._impatience = 0 if self._under_way is None else self._impatience + 1

    def _tried(self, run: Run, do: Callable[[], Found]) -> Found | AgentError:
        """What a part of a run gives, or why it gives nothing: its requests fail, the worker goes on."""
        try:
            return do()
        except AgentError as error:
            return error
        except MemoryError:
            return PermanentError("out of memory")
        except Exception as error:
            LOG.exception("%s: a run of %s failed unexpectedly", self._worker.name, run.operator)
            return PermanentError(f"unexpected: {error!r}")

    def _together(self, operator: str, run_s: float) -> int:
        """How many that were asked for one by one go into one run: where runs are so short that telling of them counts.

        The shortest of late says what the model takes; others waited for a processor too.
        """
        shortest_s = min(run_s, _FORGETS * self._shortest_s.get(operator, math.inf))
        self._shortest_s[operator] = shortest_s
        return max(1, min(MAX_ASKED, int(_TOGETHER_S / max(shortest_s, 1e-9))))

    def _patience_s(self, run: Run, now_s: float) -> float | None:
        """How long to look for the answer at once, as long as that has paid; None where there is more to be done."""
        if not _is_asked(run) or len(self._asked) != 1 or now_s - self._answered_s <= _GAP_S:
            return None
        return _PATIENCE_S if self._impatience < 3 or run.run % 64 == 0 else 0.0

    def _ended(self, run: Run, done: Done | AgentError) -> None:
        """A run that the event loop began is over: the next one begins before anything is sent."""
        run_next, others, status, answers = self._completed(run, done)
        if run_next is not None:
            self._go_on(run, run_next)
            self._start(run_next)
        self._after(others, status, answers)

    def _go_on(self, run: Run, following: Run) -> None:
        """It waited: an emulated device goes on at once, however late a timer was."""
        self._executors[following.operator].since_s = self._executors[run.operator].due_s

    def _count_failure(self, run: Run, error: AgentError) -> None:
        if _is_asked(run):
            self.figures.asked_failed[run.operator] += len(run.items) == 1  # several are run again one by one
            return
        if len(run.items) == 1:
            self.figures.failed[run.operator] += 1
            return
        self.figures.broken[run.operator] += 1
        text = "%s: a run of %d requests of %s failed, each runs again alone: %s"
        LOG.warning(text, self._worker.name, len(run.items), run.operator, error)

    def _after(
        self, instructions: Sequence[Instruction], status: grpc.StatusCode, answers: Mapping[str, Mapping[str, Array]]
    ) -> None:
        for request, outputs in answers.items():
            if (answered := self._asked.pop(request, None)) is not None:
                answered(outputs)
                self._answered_s = time.monotonic()
        self._act(instructions, status)
        if self._brain.queued <= self._full // 2:
            self.on_room()

    def _act(self, instructions: Sequence[Instruction], status: grpc.StatusCode = grpc.StatusCode.INTERNAL) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                self._start(instruction)
            elif isinstance(instruction, Send):
                self._send(instruction.worker, instruction.message)
            elif isinstance(instruction, Failed):
                why = grpc.StatusCode.RESOURCE_EXHAUSTED if instruction.overloaded else status
                self._fail(instruction.request, instruction.operator, instruction.reason, why)
            elif isinstance(instruction, Expired):
                self.figures.expired[instruction.operator] += 1
            elif isinstance(instruction, Wait):
                self._loop.call_later(max(0.0, instruction.until - time.monotonic()), self._due)

    def _due(self) -> None:
        with self._lock:
            instructions = self._brain.due(time.monotonic())
        self._act(instructions)

    def _send(self, worker: str, message: Message) -> None:
        try:
            wire = self._write(message)
        except AgentError as error:
            self._fail(message.request, message.upstream, str(error), status_of(error))
            self._forget(message.request)
            return
        due_s = 0.0
        if worker != GATEWAY and (tier := self._view.workers[worker].tier) != self._worker.tier:
            due_s = self._links.reserve(self._worker.tier, tier, len(wire.tensor.data))
            self.figures.crossed[message.upstream, tier] += len(wire.tensor.data)
        self._peers[worker].put(wire, due_s, message.until)

    # What `TracedDriver` does more at:

    def _trace_id(self, request: str) -> str:
        return ""

    def _read(self, wire: agent_pb2.Message) -> Message:
        return read_message(self._view, self._worker.operators, wire)

    def _perform(self, run: Run) -> Done:
        return _run(self._view.operators[run.operator], self._executors[run.operator], run.items)

    def _write(self, message: Message) -> agent_pb2.Message:
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
        if (answered := self._asked.pop(request, None)) is not None:
            answered(StatusError(status, f"operator {operator}: {reason}"))
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
    return about(request_id=request, operator=operator, worker=worker, trace_id=trace, status=status.name)


def _is_asked(run: Run) -> bool:
    """Whether a run is of an operator that was asked for by itself."""
    return run.items[0].route == ALONE


def read_message(view: PlanView, operators: Sequence[str], wire: agent_pb2.Message) -> Message:
    """A message from the wire, checked against the plan. InvalidInputError when it does not fit."""
    operator = view.operators.get(wire.downstream)
    if wire.downstream not in operators or operator is None or wire.route >= len(view.routes):
        raise InvalidInputError(f"no operator {wire.downstream[:60]!r} on route {wire.route} here")
    if wire.upstream not in (upstream for upstream, _ in operator.wiring.inputs):
        raise InvalidInputError(f"{wire.downstream} has no input from {wire.upstream[:60]!r}")
    path = read_path(wire, view.path_length(wire.upstream, wire.downstream))
    payload = None if any(count == 0 for _, count in path) else decode(wire.tensor)
    until_s = time.monotonic() + (min(wire.left_s, MAX_LEFT_S) if wire.left_s > 0 else MAX_LEFT_S)  # NaN is not
    return Message(wire.request_id, wire.route, wire.upstream, wire.downstream, path, payload, until_s)


def read_path(wire: agent_pb2.Message, length: int) -> Path:
    """A message's path of `length` positions. InvalidInputError unless each is child i < n, or 0 of 0."""
    path = tuple((position.index, position.count) for position in wire.path)
    if len(path) != length:
        raise InvalidInputError(f"{len(path)} open fan-outs in the path; the plan has {length}")
    for index, count in path:
        if count > MAX_CHILDREN or index >= max(count, 1):
            raise InvalidInputError(f"child {index} of {count} in the path")
    return path


def write_message(plan: str, message: Message) -> agent_pb2.Message:
    """A message for the wire. InvalidInputError when its tensor is too large or of a dtype unknown to the wire."""
    return agent_pb2.Message(
        request_id=message.request,
        route=message.route,
        upstream=message.upstream,
        downstream=message.downstream,
        path=[agent_pb2.Position(index=index, count=count) for index, count in message.path],
        tensor=None if message.payload is None else encode(message.payload),
        plan=plan,
    )


def _run(operator: OperatorView, executor: Executor, items: Sequence[Item]) -> Done:
    """All items in one run of the model, or one after another where their tensors do not fit together.

    Of an operator that was asked for by itself: all outputs of the model, by their own names.
    """
    alone = items[0].route == ALONE or len(items) == 1
    inputs = None if alone else stacked([item.inputs for item in items])
    if inputs is None:
        return _each(operator, items, [executor.run(item.inputs) for item in items])
    return _apart(operator, items, executor.run(inputs, len(items)))


def _collected(operator: OperatorView, run: Run, results: Sequence[RunResult]) -> Done:
    """What a run gave: one result for each item, or one for all of them together."""
    if len(results) < len(run.items):
        return _apart(operator, run.items, results[0])
    return _each(operator, run.items, results)


def _each(operator: OperatorView, items: Sequence[Item], results: Sequence[RunResult]) -> Done:
    asked = items[0].route == ALONE
    outputs = [result.outputs if asked else _by_downstream(operator, result.outputs) for result in results]
    busy_s, late_s = sum(result.busy_s for result in results), sum(result.late_s for result in results)
    return Done([*map(TensorOutputs, outputs)], [1] * len(items), busy_s, late_s)


def _apart(operator: OperatorView, items: Sequence[Item], result: RunResult) -> Done:
    outputs = split(_by_downstream(operator, result.outputs), len(items))
    return Done([*map(TensorOutputs, outputs)], [len(items)], result.busy_s, result.late_s)


def _settle(answer: asyncio.Future[Mapping[str, Array]], what: Mapping[str, Array] | AgentError) -> None:
    if answer.done():
        return
    if isinstance(what, AgentError):
        answer.set_exception(what)
    else:
        answer.set_result(what)


def _by_downstream(operator: OperatorView, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The output that each downstream gets. PermanentError when one is missing or has no rows to fan out."""
    first = next(iter(outputs))
    found: dict[str, Array] = {}
    for downstream, kind in operator.wiring.outputs or ((GATEWAY, "each"),):
        name = operator.output_names.get(downstream, first)
        if name not in outputs:
            raise PermanentError(f"the model has no output {name!r}; it has {', '.join(outputs)}")
        array = outputs[name]
        if array.ndim == 0 or (kind == "fan_out" and array.shape[0] > MAX_CHILDREN):
            raise PermanentError(f"output {name} of shape {list(array.shape)} cannot be split into requests")
        found[downstream] = array
    return found
