"""A pipe: two connections joined, bytes, half-closes and resets passed on both ways, with bounded buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jellybean_agent.relay.endpoints import Endpoint, Sink

Count = Callable[[int], None]  # of bytes in one direction


class Pipe:
    """Two connections joined, from construction on until both are over; then `on_end` is called.

    `counts`: called with the number of bytes from the first connection to the second, and the reverse. `early`: bytes
    that the first one has received before. A pipe with one direction ended, and no bytes in the other for
    `half_closed_s`, is reset.
    """

    def __init__(
        self,
        first: Endpoint,
        second: Endpoint,
        counts: tuple[Count, Count],
        on_end: Callable[[Pipe], None],
        half_closed_s: float,
        early: bytes = b"",
    ) -> None:
        self._halves = (_Half(self, first, second, counts[0]), _Half(self, second, first, counts[1]))
        self._on_end, self._half_closed_s = on_end, half_closed_s
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        first.sink, second.sink = self._halves
        if early:
            self._halves[0].received(early)
        for half in self._halves:
            half.begin()

    def reset(self, reason: str) -> None:
        """End both connections at once."""
        for half in self._halves:
            half.own.reset(reason)

    def half_ended(self) -> None:
        """A direction has ended: close both connections if the other has too, else watch it."""
        if all(half.has_ended for half in self._halves):
            for half in self._halves:
                half.own.close()
        if self._timer is None:
            self._watch(0)

    def half_lost(self) -> None:
        """A connection is over."""
        if not self._is_over and all(half.own.is_lost for half in self._halves):
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._on_end(self)

    def _watch(self, moved_before: int) -> None:
        moved = sum(half.moved for half in self._halves)
        if self._timer is not None and moved == moved_before:
            self.reset("one direction had ended, and nothing moved in the other")
            return
        self._timer = asyncio.get_running_loop().call_later(self._half_closed_s, self._watch, moved)


class _Half(Sink):
    """The events of the connection `own`, passed on to `other`."""

    def __init__(self, pipe: Pipe, own: Endpoint, other: Endpoint, count: Count) -> None:
        self._pipe, self.own, self._other, self._count = pipe, own, other, count
        self.has_ended = False
        self.moved = 0

    def begin(self) -> None:
        """Report what happened before the pipe, and read what comes."""
        if self.own.is_over:
            self._other.reset("its peer is gone")
            asyncio.get_running_loop().call_soon(self._pipe.half_lost)
        elif self.own.peer_has_ended:
            self.ended()
        self.own.resume_reading()

    def received(self, data: bytes) -> None:
        self.moved += len(data)
        self._count(len(data))
        self._other.send(data)

    def ended(self) -> None:
        self.has_ended = True
        self._other.end()
        self._pipe.half_ended()

    def lost(self, reason: str) -> None:
        if reason:
            self._other.reset("its peer is gone")
        self._pipe.half_lost()

    def paused(self) -> None:
        self._other.pause_reading()

    def resumed(self) -> None:
        self._other.resume_reading()
