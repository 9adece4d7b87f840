"""Decompresses in pieces, each counted before it is made, and all but small messages in a thread.

Clients take turns at one thread, a piece at a time. A piece is bounded in its input too, as a
compressed message may be long and have no content.
"""

from __future__ import annotations

import asyncio
import mmap
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Protocol
from weakref import WeakKeyDictionary

from jellybean_agent.admission.turns import ClientTurns

PIECE_BYTES = 2**18  # of input or content that a turn takes at most: about a millisecond
INLINE_BYTES = 2**16  # of input or content that the event loop decompresses itself: less than 1 ms
COMPRESSIONS = {"gzip": 31, "deflate": 15}  # name -> zlib's window bits
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, ClientTurns] = WeakKeyDictionary()


class InflationError(Exception):
    """The message is damaged."""


class Decompressor(Protocol):
    """zlib's object of one compressed stream."""

    def decompress(self, data: memoryview | bytes, max_length: int, /) -> bytes:
        """At most so many bytes of content."""
        ...


async def inflate_piece(decompressor: Decompressor, data: memoryview | bytes, client: str) -> bytes:
    """Decompress at most `PIECE_BYTES` of content in the client's turn.

    `data` has at most `PIECE_BYTES`. InflationError if it is damaged.
    """
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = ClientTurns()
    async with turns.turn(client):
        try:
            return await loop.run_in_executor(_thread(), decompressor.decompress, data, PIECE_BYTES)
        except zlib.error as error:
            raise InflationError from error


def inflate_small(message: memoryview, compression: str, limit: int) -> bytes | None:
    """The content of a message, or one byte more than `limit` of it; None if it is not small.

    InflationError if the message is damaged.
    """
    if len(message) > INLINE_BYTES:
        return None
    decompressor = zlib.decompressobj(wbits=COMPRESSIONS[compression])
    size = min(INLINE_BYTES, limit + 1)
    try:
        content = decompressor.decompress(message, size)
    except zlib.error as error:
        raise InflationError from error
    if decompressor.eof or len(content) > limit:
        return content
    if len(content) < size:
        raise InflationError
    return None


async def inflate(
    message: memoryview | bytes,
    compression: str,
    client: str,
    limit: int,
    may_grow: Callable[[int], bool],
) -> memoryview | None:
    """The content of a message; None if it is larger than `limit`, or may not have the memory.

    `may_grow(size)`: count so many bytes of content before they are made.
    InflationError if the message is damaged.
    """
    decompressor = zlib.decompressobj(wbits=COMPRESSIONS[compression])
    content = _reserve(limit + PIECE_BYTES)
    size = at = 0
    data: memoryview | bytes = b""  # little at once, as zlib copies what it leaves of its input
    while not decompressor.eof:
        if size > limit or not may_grow(size + PIECE_BYTES):
            return None
        if not data:
            data = message[at : at + PIECE_BYTES]
            at += len(data)
            if not data:
                raise InflationError
        piece = await inflate_piece(decompressor, data, client)
        content[size : size + len(piece)] = piece
        size += len(piece)
        data = decompressor.unconsumed_tail
    return content[:size] if size <= limit and may_grow(size) else None


def _reserve(size: int) -> memoryview:
    """Memory that takes no room before it is written to, so that what grows in it is never copied.

    Without huge pages, of which one byte would take 2 MiB.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(pages)


@lru_cache(1)
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "inflation")
