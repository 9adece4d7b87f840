"""Flow control of an HTTP/2 connection: windows of both sides, backpressure, and the bound of unread answers."""

from __future__ import annotations

import os

from jellybean_agent.rpc.frames import DATA, END_STREAM, HEADERS, WINDOW, WINDOW_BYTES, frame
from tests.support.http2_client import (
    BIDI,
    ECHO,
    EXHAUSTED,
    INITIAL_WINDOW,
    MAX_FRAME,
    CallServer,
    Frame,
    content,
    greeted_client,
    message,
    number_of,
    open_call,
    reset,
    settings,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time

RANDOM = os.urandom(2**18)


def test_answers_leave_as_far_as_both_windows_and_the_frame_size_allow() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server, (INITIAL_WINDOW, 10))
        whole = message(RANDOM[:100_000])
        answers = await client.send(open_call(1, ECHO))
        parts = [whole[at : at + 2**15] for at in range(0, len(whole), 2**15)]
        answers += await client.send(
            b"".join(frame(DATA, 0, 1, part) for part in parts) + frame(DATA, END_STREAM, 1, b"")
        )
        got = content(answers, 1)
        assert got == whole[:10], "the stream's window"
        answers = await client.send(window(1, 5))
        got += content(answers, 1)
        assert got == whole[:15]
        answers = await client.send(settings((INITIAL_WINDOW, 0)))
        assert content(answers, 1) == b"", "the window is negative now"
        assert content(await client.send(window(1, 10)), 1) == b""
        answers = await client.send(window(1, 2**20))
        assert [len(found.payload) for found in answers if found.kind == DATA] == [
            2**14,
            2**14,
            2**14,
            65535 - 15 - 3 * 2**14,
        ]
        got += content(answers, 1)
        assert len(got) == 65535, "the connection's window"
        answers = await client.send(settings((MAX_FRAME, 2**15)) + window(0, 2**20))
        assert client.status(answers, 1) == (0, "")
        got += content(answers, 1)
        assert max(len(found.payload) for found in answers if found.kind == DATA) == 2**15
        assert got == whole
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_the_window_of_a_connection_is_shared_and_freed_in_order() -> None:
    async def run() -> None:
        client = await greeted_client(None, (MAX_FRAME, 2**17))
        data = RANDOM[:40_000]
        answers = await client.send(unary_call(1, data) + unary_call(3, data))
        assert content(answers, 1) == message(data)
        assert len(content(answers, 3)) == 65535 - len(data) - 5
        rest = await client.send(window(0, 2**16))
        assert content(answers, 3) + content(rest, 3) == message(data)
        assert client.status(rest, 3) == (0, "")

    run_in_simulated_time(run)


def test_a_wider_setting_frees_what_waits() -> None:
    async def run() -> None:
        client = await greeted_client(None, (INITIAL_WINDOW, 0))
        answers = await client.send(unary_call(1, b"hello"))
        assert [found.kind for found in answers] == [HEADERS]
        answers = await client.send(settings((INITIAL_WINDOW, 100)))
        assert (content(answers, 1), client.status(answers, 1)) == (message(b"hello"), (0, ""))

    run_in_simulated_time(run)


def test_a_handler_waits_until_most_of_its_answer_has_left() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server, (INITIAL_WINDOW, 0))
        large = message(RANDOM)  # the first one leaves more than a stream may hold
        await client.send(
            open_call(1, BIDI) + frame(DATA, 0, 1, large) + frame(DATA, 0, 1, message(b"a") + message(b"b"))
        )
        assert server.got == [RANDOM]
        await client.send(window(1, 5))
        assert server.got == [RANDOM, b"a"], "256 KiB are left"
        await client.send(window(1, 100))
        assert server.got == [RANDOM, b"a", b"b"]

    run_in_simulated_time(run)


def test_a_stream_whose_window_is_half_used_gets_credit_for_all_of_it() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        half = bytes(WINDOW_BYTES // 2 - 5)
        answers = await client.send(open_call(1, BIDI) + frame(DATA, 0, 1, message(half)))
        assert not [found for found in answers if found.kind == WINDOW]
        await client.send(window(0, 2**30) + window(1, 2**30))
        answers = await client.send(frame(DATA, 0, 1, message(b"x")))
        updates = [found for found in answers if found.kind == WINDOW]
        assert updates == [Frame(WINDOW, 0, 1, number_of(len(half) + 5 + 6))]
        large = frame(DATA, 0, 1, b"\0" + number_of(2**21)) + frame(DATA, 0, 1, bytes(2**19))
        updates = [found for found in await client.send(large) if found.kind == WINDOW]
        assert updates == [Frame(WINDOW, 0, 1, number_of(2**19 + 5))], "a message larger than the window goes on"

    run_in_simulated_time(run)


def test_nothing_is_read_from_a_client_that_does_not_read() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server, (INITIAL_WINDOW, 2**30), (MAX_FRAME, 2**20))
        await client.send(window(0, 2**30))
        client.transport.is_blocked = True
        large = RANDOM * 4
        await client.send(unary_call(7, large[: 2**15]))
        assert client.transport.is_reading
        await client.send(unary_call(9, large[: 2**20 - 5]) + unary_call(11, large[: 2**20 - 5]))
        assert not client.transport.is_reading
        await client.send(unary_call(13, b"small"))
        assert client.transport.get_write_buffer_size() < 2**21 + 2**19 + 2**10, "it stays with the call"
        client.transport.unblock()
        answers = await client.frames()
        assert client.transport.is_reading
        assert content(answers, 13) == message(b"small")
        assert len(content(answers, 11)) == 2**20
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_answers_that_are_not_read_are_bounded_for_all_streams_together() -> None:
    async def run() -> None:
        server = CallServer(message_bytes=100)
        client = await greeted_client(server, (INITIAL_WINDOW, 0))
        answers = await client.send(b"".join(unary_call(number, bytes(60)) for number in (1, 3, 5, 7)))
        assert client.connection.responses.unsent_bytes == 3 * 65
        code, text = client.status(answers, 7)
        assert (code, text) == (EXHAUSTED, "195 bytes of answers lie unread on this connection: read them first")
        assert server.server.calls_in_progress == 3
        await client.send(reset(3))
        assert client.connection.responses.unsent_bytes == 2 * 65
        assert server.server.calls_in_progress == 2
        client.transport.lose()
        assert (server.server.calls_in_progress, client.connection.responses.unsent_bytes) == (0, 0)

    run_in_simulated_time(run)
