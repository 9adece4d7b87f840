"""Turns at work that clients share: one after another, however much each of them waits for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

TURN_S = 0.001  # of one peer's work in a turn of the event loop: shorter costs more switches, longer delays others


class ClientTurns:
    """One turn at a time, of one event loop.

    A client has one place among those that wait, so it waits for one turn of each other client.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # first in, first out
        self._clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, which lasts as long as this context."""
        of_client = self._clients.get(client)
        if of_client is None:
            of_client = self._clients[client] = asyncio.Lock()
        async with of_client, self._turn:
            yield


class PeerTurn:
    """The time that all connections of one peer have in the present turn of the event loop.

    What does not fit waits for the next turn, so that a peer delays others by `TURN_S` at a time, however many bytes
    and connections it has. `clock`: in seconds, for work that looks whether its time is over.
    """

    __slots__ = ("__weakref__", "_is_scheduled", "_loop", "_used_s", "_waiting", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock = clock
        self._used_s = 0.0
        self._is_scheduled = False
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self) -> tuple[float, float]:
        """Begin some work: the time now, and the time at which it has to end. Work of any length is allowed once."""
        now_s = self.clock()
        return now_s, now_s + TURN_S - self._used_s

    def end(self, began_s: float) -> None:
        """The work is done, or has stopped."""
        self.charge(self.clock() - began_s)

    def charge(self, used_s: float) -> None:
        """Count time that was used, or will be in this turn."""
        self._used_s += used_s
        self._schedule()

    @property
    def is_used_up(self) -> bool:
        return self._used_s >= TURN_S

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` in one of the next turns, behind what waits already."""
        self._waiting.append(resume)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """The next turn of the event loop: what waits is the first. What fails keeps nothing else waiting."""
        self._is_scheduled = False
        self._used_s = 0.0
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self.is_used_up:
                    return
        finally:
            if self._waiting:
                self._schedule()


class PeerTurns:
    """The turns of all peers at the event loops of a process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], PeerTurn] = WeakValueDictionary()

    def of(self, peer: str) -> PeerTurn:
        """The turn of a peer at the running event loop, one object while somebody keeps it."""
        key = asyncio.get_running_loop(), peer
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = PeerTurn(self._clock)
        return turn
