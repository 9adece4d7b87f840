"""Buffers the writes to a connection: all writes of one turn of the event loop are sent by one system call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

_LARGE_BYTES = 2**17  # from this size on a write of its own is cheaper than a copy


def write_together(transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
    """Write parts in order: small ones concatenated, large ones without a copy."""
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < _LARGE_BYTES:
            small.append(part)
            continue
        if small:
            transport.write(b"".join(small))
            small = []
        transport.write(memoryview(part))
    if small:
        transport.write(small[0] if len(small) == 1 else b"".join(small))


class WriteBuffer:
    """The writes of one connection. Invariant: while parts are buffered, a flush is scheduled or `is_held` is set.

    `is_held`: set by a reader that calls flush itself when done, so that all answers to one read are sent together.
    """

    __slots__ = ("_is_scheduled", "_loop", "_parts", "is_held", "transport")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.is_held = False
        self._parts: list[bytes | memoryview] = []
        self._is_scheduled = False

    def write(self, *parts: bytes | memoryview) -> None:
        """Buffer a write; it is sent at the end of this turn of the event loop."""
        self._parts += parts
        if not (self.is_held or self._is_scheduled):
            self._is_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def write_through(self, *parts: bytes | memoryview) -> None:
        """Write immediately, after the buffered parts."""
        self._parts += parts
        self.flush()

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self.flush()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and self.transport is not None:
            write_together(self.transport, parts)
