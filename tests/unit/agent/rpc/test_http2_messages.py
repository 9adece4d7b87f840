"""Messages that an HTTP/2 connection reads: compressed, in pieces, and straight into their own memory."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib

import pytest

from jellybean_agent.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from tests.support.http2_client import (
    BIDI,
    ECHO,
    EXHAUSTED,
    INITIAL_WINDOW,
    INTERNAL,
    CallServer,
    content,
    greeted_client,
    message,
    open_call,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time

RANDOM = os.urandom(2**18)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_messages_are_read_up_to_the_limit(encoding: str) -> None:
    packed = gzip.compress if encoding == "gzip" else zlib.compress

    async def run() -> None:
        client = await greeted_client(CallServer(message_bytes=1000))
        head = (b"grpc-encoding", encoding.encode())

        def call(number: int, data: bytes) -> bytes:
            return open_call(number, ECHO, head) + frame(DATA, END_STREAM, number, message(data, compressed=1))

        assert content(await client.send(call(1, packed(bytes(1000)))), 1) == message(bytes(1000))
        for number, data in ((3, b"not packed"), (5, packed(bytes(1000))[:-1])):
            answers = await client.send(call(number, data))
            assert client.status(answers, number) == (INTERNAL, f"a message is no {encoding}")
        answers = await client.send(call(7, packed(bytes(1001))))
        too_large = "a message is larger than max (1000) when decompressed"
        assert client.status(answers, 7) == (EXHAUSTED, too_large)
        assert content(await client.send(unary_call(9, b"plain", ECHO, head)), 9) == message(b"plain")

    run_in_simulated_time(run)


@pytest.mark.parametrize("pieces", [0, 1000])
@pytest.mark.parametrize("size", [2**14 - 6, 2**14 - 5, 2**14, 2**17 + 3])
def test_large_messages_arrive_whole_in_any_frames(size: int, pieces: int) -> None:
    """From 16 KiB on they are received straight into their memory, in part or in whole."""

    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server, (INITIAL_WINDOW, 2**30))
        await client.send(window(0, 2**29))
        data = message(RANDOM[:size]) + message(b"next")
        cuts = [0, 3, 5, 6, 20_000, len(data) - 2, len(data)] if size > 20_000 else [0, 7, len(data)]
        parts = b"".join(frame(DATA, 0, 1, data[low:high]) for low, high in itertools.pairwise(cuts))
        answers = await client.send(open_call(1, BIDI) + parts + frame(DATA, END_STREAM, 1, b""), pieces)
        assert server.got == [RANDOM[:size], b"next"]
        assert content(answers, 1) == data
        assert client.status(answers, 1) == (0, "")

    run_in_simulated_time(run)


def test_a_large_message_is_received_into_memory_of_its_own() -> None:
    async def run() -> None:
        client = await greeted_client()
        plain = len(client.connection.get_buffer(-1))
        begin = frame(DATA, 0, 1, message(RANDOM[:100_000]))
        await client.send(open_call(1, BIDI) + begin[: 9 + 5 + 1000])
        assert plain < len(client.connection.get_buffer(-1)) == 99_000
        await client.send(begin[9 + 5 + 1000 : -(2**14)])
        assert len(client.connection.get_buffer(-1)) == plain, "its last bytes come with what follows"

    run_in_simulated_time(run)


def test_a_request_is_kept_apart_from_the_read_buffer_until_its_stream_ends() -> None:
    async def run() -> None:
        client = await greeted_client()
        await client.send(open_call(1, ECHO) + frame(DATA, 0, 1, message(b"kept")))
        await client.send(unary_call(3, b"x" * 2000))
        assert content(await client.send(frame(DATA, END_STREAM, 1, b"")), 1) == message(b"kept")
        await client.send(open_call(5, ECHO) + frame(DATA, 0, 5, message(b"trailers")))
        end = frame(HEADERS, END_HEADERS | END_STREAM, 5, b"")
        assert content(await client.send(end), 5) == message(b"trailers")

    run_in_simulated_time(run)
