"""Records what the transport, the links and the interpreter of every rank enqueue, as programs of the NCCL model.

All ranks run in this process, each in a thread, on the CPU; transfers are queues. The code that decides on the order of
operations is the real one.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from jellybean.training import Interpreter, Place, StageCopy, StageTransport, UpdateSettings, WeightUpdates, peers_of
from jellybean.training.processes.links import DeviceLink, Link
from jellybean.training.processes.streams import HostStreams
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.stage import StageSettings
from jellybean_solver.pipeline import Action, Schedule
from tests.integration.training.nccl.model import (
    Await,
    Collective,
    Compute,
    Enqueue,
    Mark,
    Operation,
    Post,
    Programs,
    Step,
    Synchronize,
    Transfer,
    Wait,
)
from tests.integration.training.nets import Chain, batches, cut_evenly, loss

_COMPUTATION = "computation"
_events = itertools.count()


class Recorder:
    """What the threads of one rank do, in order, while `recording`."""

    def __init__(self, rank: int) -> None:
        self.rank, self.recording = rank, True
        self.programs: dict[int, list[Step]] = defaultdict(list)
        self._current = threading.local()
        self._changed = threading.Condition()

    @property
    def stream(self) -> str:
        """The calling thread's current stream."""
        return str(getattr(self._current, "stream", _COMPUTATION))

    @contextmanager
    def current(self, stream: str) -> Iterator[None]:
        before, self._current.stream = self.stream, stream
        try:
            yield
        finally:
            self._current.stream = before

    def log(self, step: Step) -> None:
        with self._changed:
            if self.recording:
                self.programs[threading.get_ident()].append(step)
            self._changed.notify_all()

    def finish(self) -> None:
        """Stop recording, once the thread that completes sends has logged the end of every message."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count(Post) == self._count(Synchronize), timeout=60.0)
            self.recording = False

    def _count(self, kind: type) -> int:
        return sum(isinstance(step, kind) for steps in self.programs.values() for step in steps)

    def enqueue(self, stream: str, *operations: Operation) -> None:
        for operation in operations:
            self.log(Enqueue(stream, operation))

    def enqueue_on_communicator(self, operation: Transfer | Collective) -> int:
        """As torch's ProcessGroupNCCL: on a stream of the communicator, behind the current one. Returns its event."""
        begins, ends = next(_events), next(_events)
        self.enqueue(self.stream, Mark(begins))
        self.enqueue(operation.communicator, Wait(begins), operation, Mark(ends))
        return ends


class _Event:
    def __init__(self, recorder: Recorder, peer: int) -> None:
        self.number, self._recorder, self._peer = next(_events), recorder, peer

    def synchronize(self) -> None:
        self._recorder.log(Synchronize(self.number, self._peer))


class _Streams(HostStreams):
    """The streams of one rank's device. `peer`: whose link uses them; the rank itself: the interpreter."""

    def __init__(self, recorder: Recorder, peer: int) -> None:
        self._recorder, self._peer, self._made = recorder, peer, itertools.count()

    def new(self) -> str:
        return f"stream {next(self._made)} of the link to {self._peer}"

    def current(self, stream: Any) -> Any:
        return self._recorder.current(stream or _COMPUTATION)

    def mark(self, stream: Any = None) -> _Event:
        event = _Event(self._recorder, self._peer)
        self._recorder.enqueue(stream or _COMPUTATION, Mark(event.number))
        return event

    def wait(self, event: Any, stream: Any = None) -> None:
        self._recorder.enqueue(stream or _COMPUTATION, Wait(event.number))

    def timestamp(self) -> float:
        self._recorder.enqueue(_COMPUTATION, Compute())
        return 0.0


class _Transfer:
    """A transfer in flight: NCCL's `wait` holds up the current stream only."""

    def __init__(self, recorder: Recorder, event: int) -> None:
        self._recorder, self._event = recorder, event

    def wait(self, *timeout: Any) -> None:
        self._recorder.enqueue(self._recorder.stream, Wait(self._event))


class _Communicator:
    def __init__(self, recorder: Recorder, name: str, queues: dict[Any, queue.SimpleQueue[torch.Tensor]]) -> None:
        self._recorder, self._name, self._queues = recorder, name, queues

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> _Transfer:
        event = self._recorder.enqueue_on_communicator(Transfer(self._name, peer, True))
        self._queues[self._name, self._recorder.rank, peer].put(tensor.clone())
        return _Transfer(self._recorder, event)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> _Transfer:
        event = self._recorder.enqueue_on_communicator(Transfer(self._name, peer, False))
        tensor.copy_(self._queues[self._name, peer, self._recorder.rank].get())
        return _Transfer(self._recorder, event)


class _Header:
    """A header in flight; `memory`: where it arrives, None for the sender."""

    def __init__(self, headers: _Headers, peer: int, memory: torch.Tensor | None) -> None:
        self._headers, self._peer, self._memory = headers, peer, memory

    def wait(self, *timeout: Any) -> None:
        if self._memory is not None:
            arrived = self._headers.queues["header", self._peer, self._headers.recorder.rank].get()
            self._memory[: len(arrived)] = arrived
            self._headers.recorder.log(Await(self._peer))


class _Headers:
    def __init__(self, recorder: Recorder, queues: dict[Any, queue.SimpleQueue[torch.Tensor]]) -> None:
        self.recorder, self.queues = recorder, queues

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> _Header:
        self.recorder.log(Post(peer))
        self.queues["header", self.recorder.rank, peer].put(tensor)
        return _Header(self, peer, None)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> _Header:
        return _Header(self, peer, tensor)


class _Updates(WeightUpdates):
    """Updates that record the all-reduces over the copies of a stage."""

    def __init__(self, recorder: Recorder, schedule: Schedule, held: dict[tuple[int, int], StageCopy]) -> None:
        make = lambda own: torch.optim.SGD(own.values(), lr=0.01)  # noqa: E731
        super().__init__(held, make, ProcessGroups(), UpdateSettings(schedule.flushes))
        self._recorder, self._schedule = recorder, schedule
        self._events: list[int] = []

    def reduce(self, number: int, stage: StageCopy) -> None:
        members = tuple(sorted({places[number] for places in self._schedule.device_of}))
        if len(members) > 1 and number not in self._pending:  # a communicator per set of ranks, as in training
            operation = Collective(f"copies {members}", members, f"stage {number}")
            self._events.append(self._recorder.enqueue_on_communicator(operation))
            self._pending[number] = None

    def update(self, action: Action, stage: StageCopy, place: int) -> None:
        super().update(action, stage, place)
        self._recorder.enqueue(_COMPUTATION, *map(Wait, self._events))
        self._events.clear()


class _Given:
    """Micro-batches of two rows."""

    def __init__(self, count: int) -> None:
        self._rows = batches(0, [2] * count)

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return tuple((self._rows[microbatch][0],)[index] for index in arguments)

    def target(self, microbatch: int) -> torch.Tensor:
        return self._rows[microbatch][1]

    def factor(self, microbatch: int) -> float:
        return 1.0

    def seed(self, microbatch: int, stage: int) -> int:
        return 0


def record(schedule: Schedule, *, by_direction: bool = True) -> Programs:
    """The programs of one iteration. `by_direction`: False for one communicator per pair of ranks."""
    queues: dict[Any, queue.SimpleQueue[torch.Tensor]] = defaultdict(queue.SimpleQueue)
    for keys in itertools.permutations(range(schedule.devices), 2):  # before threads use them
        for name in ("header", *(_communicator(*keys, by_direction=each) for each in (True, False))):
            queues[name, *keys] = queue.SimpleQueue()
    recorders = [Recorder(rank) for rank in range(schedule.devices)]
    transports = [_transport(schedule, recorder, queues, by_direction=by_direction) for recorder in recorders]
    failures: list[BaseException] = []
    stages = [_held(schedule, recorder.rank) for recorder in recorders]  # tracing is not safe in threads
    threads = [
        threading.Thread(target=_run, args=(schedule, *each, failures), daemon=True)
        for each in zip(recorders, transports, stages, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for recorder in recorders:
        recorder.finish()
    for transport in transports:  # the goodbyes of all first: closing waits for the others
        thread = threading.Thread(target=transport.close, daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    return {recorder.rank: list(recorder.programs.values()) for recorder in recorders}


def _communicator(sender: int, receiver: int, *, by_direction: bool) -> str:
    ranks = (sender, receiver) if by_direction else tuple(sorted((sender, receiver)))
    return f"communicator {'->'.join(map(str, ranks)) if by_direction else ranks}"


def _transport(schedule: Schedule, recorder: Recorder, queues: Any, *, by_direction: bool) -> StageTransport:
    rank, links = recorder.rank, dict[int, Link]()
    for peer in peers_of(schedule, rank):
        outgoing, incoming = (
            _Communicator(recorder, _communicator(*pair, by_direction=by_direction), queues)
            for pair in ((rank, peer), (peer, rank))
        )
        links[peer] = DeviceLink(peer, outgoing, incoming, _Streams(recorder, peer))
    return StageTransport(peers_of(schedule, rank), _Headers(recorder, queues), links=links, patience_s=60.0)


def _held(schedule: Schedule, rank: int) -> dict[tuple[int, int], StageCopy]:
    cut = cut_evenly(Chain(tied=False), schedule.stages, (torch.zeros(3, 6, dtype=torch.float64),))
    return {
        (number, pipe): stage.copy(
            StageSettings(), _loss if number == schedule.stages - 1 else None, torch.device("cpu")
        )
        for number, pipe in schedule.copies_on(rank)
        for stage in [cut.stages[number]]
    }


def _run(
    schedule: Schedule,
    recorder: Recorder,
    transport: StageTransport,
    held: dict[tuple[int, int], StageCopy],
    failures: list[BaseException],
) -> None:
    try:
        transport.start()
        updates = _Updates(recorder, schedule, held)
        place = Place(recorder.rank, streams=_Streams(recorder, recorder.rank))
        Interpreter(schedule, held, transport, updates, place).run(_Given(_microbatches(schedule)))
    except BaseException as error:  # noqa: BLE001  # raised in the test's thread
        failures.append(error)


def _loss(outputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return loss(outputs[0], target)


def _microbatches(schedule: Schedule) -> int:
    return 1 + max(action.microbatch for actions in schedule.actions for action in actions)
