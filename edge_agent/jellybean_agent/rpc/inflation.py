"""Decompresses a message in pieces, so that each is counted before it is made, and large ones leave the event loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

PIECE_BYTES = 2**20
INLINE_BYTES = 2**16  # decompressed in the event loop, which takes less than a millisecond
COMPRESSIONS = {"gzip": 31, "deflate": 15}  # name -> zlib's window bits


class InflationError(Exception):
    """The message is damaged."""


class Inflation:
    """One message that is being decompressed. `content`: what there is of it."""

    __slots__ = ("_at", "_message", "_slice", "_unpack", "content")

    def __init__(self, message: memoryview | bytes, compression: str) -> None:
        self._unpack = zlib.decompressobj(wbits=COMPRESSIONS[compression])
        self._message, self._at = message, 0
        self._slice: memoryview | bytes = b""  # zlib copies what it leaves of its input, so it gets little at once
        self.content = bytearray()

    @property
    def is_complete(self) -> bool:
        return self._unpack.eof

    def advance(self, size: int) -> None:
        """Decompress at most `size` bytes more. InflationError if the message ends before its content does."""
        until = len(self.content) + size
        while len(self.content) < until and not self._unpack.eof:
            if not self._slice:
                self._slice = self._message[self._at : self._at + PIECE_BYTES]
                self._at += len(self._slice)
                if not self._slice:
                    raise InflationError
            try:
                self.content += self._unpack.decompress(self._slice, until - len(self.content))
            except zlib.error as error:
                raise InflationError from error
            self._slice = self._unpack.unconsumed_tail

    async def finish(self, may_grow: Callable[[int], bool]) -> bool:
        """Decompress the rest in a thread; False if it may not have the memory.

        `may_grow(size)`: count so many bytes of content before they are made.
        """
        loop = asyncio.get_running_loop()
        while not self.is_complete:
            if not may_grow(len(self.content) + PIECE_BYTES):
                return False
            await loop.run_in_executor(_thread(), self.advance, PIECE_BYTES)
        return may_grow(len(self.content))


@lru_cache(1)
def _thread() -> ThreadPoolExecutor:
    """One thread for all: whoever sends compressed messages waits for others who do, and nobody else."""
    return ThreadPoolExecutor(1, "inflation")
