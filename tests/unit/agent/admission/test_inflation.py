"""Compressed messages are unpacked in pieces that are counted first, of their clients in turn."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import resource
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from jellybean_agent.admission.inflation import (
    INLINE_BYTES,
    PIECE_BYTES,
    InflationError,
    inflate,
    inflate_piece,
    inflate_small,
)

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
MIB = 2**20
ZEROS = gzip.compress(bytes(8 * MIB))
DATA = random.Random(1).randbytes(1000) * 3000
EMPTY_BLOCKS = zlib.compress(b"")[:2] + b"\0\0\0\xff\xff" * 400_000  # 2 MB without content
LONG_NAME = b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 2_000_000  # a gzip header that does not end


@pytest.mark.parametrize("compression", PACK)
def test_a_message_is_unpacked_whole_and_counted_before_it_is_there(compression: str) -> None:
    counted = [0]

    def may_grow(size: int) -> bool:
        counted.append(size)
        return True

    packed = PACK[compression](DATA)
    content = asyncio.run(inflate(packed, compression, "alice", len(DATA), may_grow))
    assert content == DATA
    assert max(after - before for before, after in itertools.pairwise(counted[1:])) <= PIECE_BYTES
    assert max(counted) >= len(DATA)
    assert counted[-1] == len(DATA), "what is left over counts no longer"


@pytest.mark.parametrize("compression", PACK)
def test_a_message_above_its_limit_or_memory_is_not_unpacked(compression: str) -> None:
    async def run() -> None:
        packed = PACK[compression](DATA)
        assert await inflate(packed, compression, "alice", len(DATA) - 1, lambda size: True) is None
        counted: list[int] = []

        def may_grow(size: int) -> bool:
            counted.append(size)
            return size <= MIB

        assert await inflate(packed, compression, "alice", len(DATA), may_grow) is None
        assert max(counted) <= MIB + PIECE_BYTES

    asyncio.run(run())


@pytest.mark.parametrize(
    ("compression", "message"),
    [
        *((name, pack(DATA)[:-9]) for name, pack in PACK.items()),
        ("deflate", EMPTY_BLOCKS),
        ("gzip", LONG_NAME),
        ("gzip", b"x" * INLINE_BYTES * 2),
    ],
)
def test_a_damaged_message_takes_a_turn_for_each_piece(compression: str, message: bytes) -> None:
    turns = 0

    def may_grow(size: int) -> bool:
        nonlocal turns
        turns += 1
        return True

    with pytest.raises(InflationError):
        asyncio.run(inflate(message, compression, "mallory", 64 * MIB, may_grow))
    assert turns >= (len(message) // PIECE_BYTES if message in (EMPTY_BLOCKS, LONG_NAME) else 1)


@pytest.mark.parametrize(("compression", "message"), [("deflate", EMPTY_BLOCKS), ("gzip", LONG_NAME)])
def test_only_small_messages_are_unpacked_in_the_event_loop(compression: str, message: bytes) -> None:
    assert inflate_small(memoryview(message), compression, 64 * MIB) is None
    assert inflate_small(memoryview(PACK[compression](bytes(MIB))), compression, 64 * MIB) is None
    small = memoryview(PACK[compression](b"x" * 1000))
    assert inflate_small(small, compression, 64 * MIB) == b"x" * 1000
    assert inflate_small(small, compression, 999) == b"x" * 1000, "too large"
    with pytest.raises(InflationError):
        inflate_small(small[:-1], compression, 64 * MIB)


@pytest.mark.parametrize("others", [1, 3])
def test_a_client_waits_for_one_piece_of_each_other_client(others: int) -> None:
    order: list[str] = []

    async def unpack(client: str, pieces: int) -> None:
        decompressor = zlib.decompressobj(wbits=31)
        data: bytes = ZEROS
        for _ in range(pieces):
            await inflate_piece(decompressor, data, client)
            data = decompressor.unconsumed_tail
            order.append(client)

    async def run() -> None:
        crowd = [asyncio.create_task(unpack(f"mallory {number}", 20)) for number in range(others) for _ in range(40)]
        await asyncio.sleep(0)
        await unpack("alice", 3)
        behind = order.index("alice") + 1, len(order)
        assert behind[0] <= others + 2
        assert behind[1] <= 3 * (others + 1) + 2
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await unpack("bob", 1)

    asyncio.run(run())


def test_what_is_unpacked_takes_the_memory_of_its_bytes() -> None:
    """Neither huge pages nor several copies: sixty messages of 300 KB, each with a piece."""
    contents: list[memoryview | None] = []

    async def run() -> None:
        packed = gzip.compress(bytes(300_000))
        inflations = [inflate(packed, "gzip", "alice", 64 * MIB, lambda size: True) for _ in range(60)]
        contents.extend(await asyncio.gather(*inflations))

    before = _resident_bytes()
    asyncio.run(run())
    assert [len(content or b"") for content in contents] == [300_000] * 60
    assert _resident_bytes() - before <= 60 * (300_000 + PIECE_BYTES) + 12 * MIB


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
