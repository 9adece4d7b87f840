"""One call's half of an HTTP/2 connection: what came of the message under way, what may be sent, what waits to be."""

from __future__ import annotations

import asyncio
from collections import deque

from jellybean_agent.rpc.calls import RpcCall
from jellybean_agent.rpc.frames import CLOSED, FLOW, WINDOW_BYTES, BrokenError

DIRECT_BYTES = 2**14  # of a message: above it, it is read to where it belongs


class Stream:
    """One call's half of a connection: what came of the message under way, what may be sent, what waits to be."""

    __slots__ = (
        *("call", "credit", "got", "has_headers", "is_half_closed", "last", "messages"),
        *("need", "packed", "part", "request", "timer", "unread", "unsent", "waiter", "whole", "window"),
    )

    def __init__(self, window: int) -> None:
        self.call: RpcCall | None = None
        self.window = window  # that the client gives
        self.credit = WINDOW_BYTES  # that we give
        self.unread = 0  # taken in, not yet given back
        self.part = bytearray()  # of what is not whole: copied, for what it came in is larger
        self.got, self.need = 0, -1  # bytes that came; those of the message under way, prefix apart, -1: not known
        self.request: memoryview | None = None  # of a unary call, which is handled when the client has ended its side
        self.timer: asyncio.TimerHandle | None = None  # until which an answer is kept
        self.packed = False
        self.whole: memoryview | None = None  # where the message under way is read into, if it is large
        self.messages = 0
        self.has_headers = self.is_half_closed = False
        self.unsent: deque[memoryview] = deque()
        self.last: bytes | None = None  # trailers that follow what is unsent
        self.waiter: asyncio.Future[None] | None = None

    def keep(self) -> None:
        """The request is kept until the client has ended its side: what it came in may be larger."""
        if self.request is not None and len(self.request) < DIRECT_BYTES:
            self.request = memoryview(bytes(self.request))

    def spend(self, size: int) -> None:
        """So much came."""
        if self.is_half_closed:
            raise BrokenError(CLOSED, "DATA after a stream's end")
        self.credit -= size
        if self.credit < 0:
            raise BrokenError(FLOW, "more than a stream's window")
        self.unread += size
