"""A model of NCCL's rules, which finds deadlocks of given programs whatever the speed of hosts and devices.

Every rank has host threads, which enqueue operations on streams and go on. A stream executes its operations in order.
A communicator executes those of a rank in order too, on a stream of its own: a send ends only when the peer's matching
receive is executed and the other way round, a collective when all members execute it. An event is complete when the
operations before it are. Nothing else orders the operations: the model takes each possible step in a random order.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Place: TypeAlias = tuple[int, str]  # rank, stream


@dataclass(frozen=True)
class Compute:
    """A kernel."""


@dataclass(frozen=True)
class Mark:
    """Completes an event."""

    event: int


@dataclass(frozen=True)
class Wait:
    """Holds the stream up until an event is complete."""

    event: int


@dataclass(frozen=True)
class Transfer:
    """A send to, or a receive from, `peer` by a communicator."""

    communicator: str
    peer: int
    sends: bool


@dataclass(frozen=True)
class Collective:
    """A collective of `members` by a communicator; `label`: what is reduced."""

    communicator: str
    members: tuple[int, ...]
    label: str


Operation: TypeAlias = Compute | Mark | Wait | Transfer | Collective


@dataclass(frozen=True)
class Enqueue:
    """Host: enqueue an operation on a stream."""

    stream: str
    operation: Operation


@dataclass(frozen=True)
class Post:
    """Host: send a header to `peer`, when fewer than the limit of its messages are in flight."""

    peer: int


@dataclass(frozen=True)
class Await:
    """Host: wait for the next header of `peer`."""

    peer: int


@dataclass(frozen=True)
class Synchronize:
    """Host: wait until an event is complete, and with it the oldest message to `peer`."""

    event: int
    peer: int


Step: TypeAlias = Enqueue | Post | Await | Synchronize
Programs: TypeAlias = Mapping[int, Sequence[Sequence[Step]]]  # rank -> steps of each of its host threads


class DeadlockError(AssertionError):
    """Nothing can go on; the message has what every stream and thread waits for."""


@dataclass(frozen=True)
class Machine:
    """What the programs run on. `limit`: messages in flight to a peer above which a host waits.

    `queues`: hardware queues of a device, None for one per stream. Streams that share one are executed in the order in
    which the host enqueued, but for kernels that have begun. `resident`: transfers that a device executes at once; None
    for all.
    """

    limit: int
    queues: int | None = None
    resident: int | None = None


class NcclModel:
    """One execution of programs. `seed`: of speeds and of the order of steps."""

    def __init__(self, programs: Programs, machine: Machine, seed: int) -> None:
        self._random, self._machine = random.Random(seed), machine
        self._threads = [(rank, deque(steps)) for rank, threads in programs.items() for steps in threads]
        self._queue_of: dict[Place, tuple[int, int]] = {}  # stream -> rank, hardware queue
        self._queues: dict[tuple[int, int], deque[tuple[Place, Operation]]] = {}
        self._running: dict[Place, Transfer | Collective] = {}
        self._marked: set[int] = set()
        self._complete: set[int] = set()
        self._headers: Counter[tuple[int, int]] = Counter()  # (sender, receiver): posted, not yet awaited
        self._in_flight: Counter[tuple[int, int]] = Counter()
        self._speeds: dict[object, float] = {}

    def run(self) -> None:
        """Execute all steps and operations. DeadlockError if that is impossible."""
        while enabled := [*self._enabled_threads(), *self._enabled_queues(), *self._enabled_kernels()]:
            act, entity = self._random.choices(enabled, [self._speed(one) for _, one in enabled])[0]
            act(entity)
        waiting = [f"rank {rank}'s host: {steps[0]}" for rank, steps in self._threads if steps]
        waiting += [f"rank {rank}'s {name}: {operation}" for (rank, name), operation in self._running.items()]
        heads = [queue[0] for queue in self._queues.values() if queue]
        waiting += [f"rank {rank}'s {name}: {operation}" for (rank, name), operation in heads]
        if waiting:
            raise DeadlockError("\n".join(waiting))

    def _speed(self, entity: object) -> float:
        """How often a thread or a queue goes on: between seldom and often, at random but the same all the time."""
        if entity not in self._speeds:
            self._speeds[entity] = 10 ** self._random.uniform(-2, 0)
        return self._speeds[entity]

    def _enabled_threads(self) -> Iterator[_Enabled]:
        for number, (rank, steps) in enumerate(self._threads):
            match steps[0] if steps else None:
                case None:
                    continue
                case Enqueue(_, Wait(event)) if event not in self._marked:
                    continue  # another thread has yet to hand the event over
                case Post(peer) if self._in_flight[rank, peer] >= self._machine.limit:
                    continue
                case Await(peer) if not self._headers[peer, rank]:
                    continue
                case Synchronize(event, _) if event not in self._complete:
                    continue
                case _:
                    yield self._step, number

    def _step(self, number: int) -> None:
        rank, steps = self._threads[number]
        match steps.popleft():
            case Enqueue(stream, operation):
                place = rank, stream
                self._queues.setdefault(self._queue(place), deque()).append((place, operation))
                if isinstance(operation, Mark):
                    self._marked.add(operation.event)
            case Post(peer):
                self._headers[rank, peer] += 1
                self._in_flight[rank, peer] += 1
            case Await(peer):
                self._headers[peer, rank] -= 1
            case Synchronize(_, peer):
                self._in_flight[rank, peer] -= 1

    def _queue(self, place: Place) -> tuple[int, int]:
        """The hardware queue of a stream: given out in turn."""
        if place not in self._queue_of:
            earlier = sum(rank == place[0] for rank, _ in self._queue_of)
            queues = self._machine.queues
            self._queue_of[place] = place[0], earlier if queues is None else earlier % queues
        return self._queue_of[place]

    def _enabled_queues(self) -> Iterator[_Enabled]:
        for key, queue in self._queues.items():
            if not queue or queue[0][0] in self._running:
                continue
            match queue[0][1]:
                case Wait(event) if event not in self._complete:
                    continue
                case Transfer() | Collective() if self._is_full(key[0]):
                    continue
                case _:
                    yield self._begin, key

    def _is_full(self, rank: int) -> bool:
        resident = self._machine.resident
        return resident is not None and sum(one == rank for one, _ in self._running) >= resident

    def _begin(self, key: tuple[int, int]) -> None:
        """Execute the first operation of a queue; a transfer begins and lets operations of other streams pass."""
        place, operation = self._queues[key].popleft()
        if isinstance(operation, Mark):
            self._complete.add(operation.event)
        elif isinstance(operation, Transfer | Collective):
            self._running[place] = operation

    def _enabled_kernels(self) -> Iterator[_Enabled]:
        for place, operation in self._running.items():
            if all(self._running.get(other) == expected for other, expected in _partners(place[0], operation)):
                yield self._finish, place

    def _finish(self, place: Place) -> None:
        for other, _ in _partners(place[0], self._running.pop(place)):
            self._running.pop(other, None)


_Enabled: TypeAlias = tuple[Callable[[Any], None], Any]


def _partners(rank: int, operation: Transfer | Collective) -> list[tuple[Place, Transfer | Collective]]:
    """Where, on other ranks, what must run for this operation to end."""
    if isinstance(operation, Transfer):
        counterpart = Transfer(operation.communicator, rank, not operation.sends)
        return [((operation.peer, operation.communicator), counterpart)]
    return [((other, operation.communicator), operation) for other in operation.members if other != rank]
