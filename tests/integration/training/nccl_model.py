"""A model of NCCL's rules, which finds deadlocks of given programs whatever the speed of hosts and devices.

Every rank has host threads, which enqueue operations on streams and go on. A stream executes its operations in order.
A communicator executes those of a rank in order too, on a stream of its own: a send ends only when the peer's matching
receive is executed and the other way round, a collective when all members execute it. An event is complete when the
operations before it are. Nothing else orders the operations: the model takes each possible step in a random order.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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


class Deadlock(AssertionError):
    """Nothing can go on; the message has what every stream and thread waits for."""


class NcclModel:
    """One execution of programs. `limit`: messages in flight to a peer. `seed`: of speeds and of the order of steps."""

    def __init__(self, programs: Programs, limit: int, seed: int) -> None:
        self._random, self._limit = random.Random(seed), limit
        self._threads = [(rank, deque(steps)) for rank, threads in programs.items() for steps in threads]
        self._streams: dict[Place, deque[Operation]] = {}
        self._marked: set[int] = set()
        self._complete: set[int] = set()
        self._headers: Counter[tuple[int, int]] = Counter()  # (sender, receiver): posted, not yet awaited
        self._in_flight: Counter[tuple[int, int]] = Counter()
        self._speeds: dict[object, float] = {}

    def run(self) -> None:
        """Execute all steps and operations. Deadlock if that is impossible."""
        while enabled := [*self._enabled_threads(), *self._enabled_streams()]:
            speeds = [self._speed(one) for one in enabled]
            chosen = self._random.choices(enabled, speeds)[0]
            if isinstance(chosen, int):
                self._step(chosen)
            else:
                self._execute(chosen)
        waiting = [f"rank {rank}'s host: {steps[0]}" for rank, steps in self._threads if steps]
        waiting += [f"rank {rank}'s {name}: {queue[0]}" for (rank, name), queue in self._streams.items() if queue]
        if waiting:
            raise Deadlock("\n".join(waiting))

    def _speed(self, entity: object) -> float:
        """How often a thread or a stream goes on: between seldom and often, at random but the same all the time."""
        if entity not in self._speeds:
            self._speeds[entity] = 10 ** self._random.uniform(-2, 0)
        return self._speeds[entity]

    def _enabled_threads(self) -> Iterator[int]:
        for number, (rank, steps) in enumerate(self._threads):
            match steps[0] if steps else None:
                case None:
                    continue
                case Enqueue(_, Wait(event)) if event not in self._marked:
                    continue  # another thread has yet to hand the event over
                case Post(peer) if self._in_flight[rank, peer] >= self._limit:
                    continue
                case Await(peer) if not self._headers[peer, rank]:
                    continue
                case Synchronize(event, _) if event not in self._complete:
                    continue
                case _:
                    yield number

    def _step(self, number: int) -> None:
        rank, steps = self._threads[number]
        match steps.popleft():
            case Enqueue(stream, operation):
                self._streams.setdefault((rank, stream), deque()).append(operation)
                if isinstance(operation, Mark):
                    self._marked.add(operation.event)
            case Post(peer):
                self._headers[rank, peer] += 1
                self._in_flight[rank, peer] += 1
            case Await(peer):
                self._headers[peer, rank] -= 1
            case Synchronize(_, peer):
                self._in_flight[rank, peer] -= 1

    def _enabled_streams(self) -> Iterator[Place]:
        for (rank, name), queue in self._streams.items():
            match queue[0] if queue else None:
                case None:
                    continue
                case Wait(event) if event not in self._complete:
                    continue
                case Transfer(communicator, peer, sends) if self._head(peer, communicator) != Transfer(
                    communicator, rank, not sends
                ):
                    continue
                case Collective(communicator, members) as own if any(
                    self._head(other, communicator) != own for other in members
                ):
                    continue
                case _:
                    yield rank, name

    def _head(self, rank: int, communicator: str) -> Operation | None:
        """What a rank executes on a communicator now."""
        queue = self._streams.get((rank, communicator))
        return queue[0] if queue else None

    def _execute(self, place: Place) -> None:
        match self._streams[place].popleft():
            case Mark(event):
                self._complete.add(event)
            case Transfer(communicator, peer, _):
                self._streams[peer, communicator].popleft()
            case Collective(communicator, members):
                for other in members:
                    if other != place[0]:
                        self._streams[other, communicator].popleft()
