"""What is written to a connection in one turn of the event loop leaves together: one system call, one packet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

_LARGE_BYTES = 2**17  # a part that costs less as a write of its own than copied


def write_together(transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
    """Small parts in one write, large ones as they lie."""
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


class Gathering:
    """The writing half of a connection. Invariant: where `_out` holds something, a flush is due in this turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._is_flushing = False

    def _write(self, *parts: bytes | memoryview) -> None:
        self._out += parts
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._is_flushing = False
        self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            write_together(self._transport, out)
