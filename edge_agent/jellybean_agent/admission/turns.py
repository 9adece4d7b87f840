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
    """Turns of one event loop, `at_once` at a time, of different clients.

    A client has one place among those that wait, so it waits for one turn of each other client.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._turn = asyncio.Semaphore(at_once)  # first in, first out
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
    and connections it has. Work that cannot be divided may take longer, and the peer has none of the next turns until
    that is made up for. `clock`: in seconds, for work that looks whether its time is over.
    """

    __slots__ = (
        *("__weakref__", "_begun", "_depth", "_has_released", "_is_scheduled", "_loop", "_until_s", "_used_s"),
        *("_waiting", "clock"),
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock = clock
        self._used_s = self._until_s = 0.0
        self._depth = 0  # of work within work
        self._is_scheduled = self._has_released = False
        self._begun: deque[Callable[[], None]] = deque()  # goes on before `_waiting`
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self) -> tuple[float, float]:
        """Begin some work: the time now, and the time at which it has to end.

        Work within work, as of a protocol below TLS, has to end with it.
        """
        now_s = self.clock()
        if not self._depth:
            self._until_s = now_s + TURN_S - self._used_s
        self._depth += 1
        return now_s, self._until_s

    def end(self, began_s: float) -> None:
        """The work is done, or has stopped."""
        self._depth -= 1
        if not self._depth:
            self._used_s += self.clock() - began_s
            if not self._is_scheduled:
                self._schedule()

    def charge(self, used_s: float) -> None:
        """Count time that was used, or will be in this turn."""
        self._used_s += used_s
        self._schedule()

    @property
    def is_used_up(self) -> bool:
        return self._used_s >= TURN_S

    def wait(self, resume: Callable[[], None], *, is_first: bool = False) -> None:
        """Call `resume` in one of the next turns, behind what waits already.

        `is_first`: before it, but behind what waits so too. For work that would be for nothing if it did not go on
        soon, the more so the longer it has waited.
        """
        (self._begun if is_first else self._waiting).append(resume)
        self._schedule()

    async def next(self) -> None:
        """Wait for one of the next turns, as of `wait`.

        The caller's work is not counted before it is done, so nothing else is released in the same turn.
        """
        has_come: asyncio.Future[None] = self._loop.create_future()
        self.wait(lambda: self._release(has_come))
        await has_come

    def _release(self, has_come: asyncio.Future[None]) -> None:
        if not has_come.done():
            has_come.set_result(None)
            self._has_released = True

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """The next turn of the event loop: what waits is the first. What fails keeps nothing else waiting."""
        self._used_s = max(0.0, self._used_s - TURN_S)
        self._has_released = False
        try:
            for _ in range(len(self._begun) + len(self._waiting)):
                if self.is_used_up or self._has_released:
                    return
                (self._begun or self._waiting).popleft()()
        finally:
            self._is_scheduled = False  # not before: the next turn is behind the work of whom this one has released
            if self._begun or self._waiting or self._used_s:
                self._schedule()


class WorkInTurns:
    """Work on what a connection has received, in the turns of its peer.

    `work`: does what there is until a time by a clock; False if the time was over first. `resume`: goes on in the next
    turn.
    """

    __slots__ = ("_resume", "_work", "is_waiting")

    def __init__(self, work: Callable[[Callable[[], float], float], bool], resume: Callable[[], None]) -> None:
        self._work, self._resume = work, resume
        self.is_waiting = False

    def run(self, turn: PeerTurn, pause: Callable[[], bool]) -> None:
        """Work in this turn of the event loop; what is left waits for the next one.

        `pause`: receive nothing until then; False if the connection has ended, so that nothing waits.
        """
        if self.is_waiting or (not turn.is_used_up and self._is_done(turn)):
            return
        if pause():
            self.is_waiting = True
            turn.wait(self._continue)

    def _is_done(self, turn: PeerTurn) -> bool:
        began_s, until_s = turn.begin()
        try:
            return self._work(turn.clock, until_s)
        finally:
            turn.end(began_s)

    def _continue(self) -> None:
        """The peer's next turn."""
        self.is_waiting = False
        self._resume()


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
