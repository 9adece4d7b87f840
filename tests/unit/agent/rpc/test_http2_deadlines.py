"""Deadlines of calls on an HTTP/2 connection, in simulated time."""

from __future__ import annotations

import asyncio

import pytest

from jellybean_agent.rpc.frames import CANCEL, DATA, END_STREAM, RESET, frame
from tests.support.http2_client import (
    BIDI,
    DEADLINE,
    ECHO,
    INITIAL_WINDOW,
    SLOW,
    CallServer,
    Frame,
    greeted_client,
    message,
    number_of,
    open_call,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time

TIMED = [
    ("no request", open_call(1, ECHO, (b"grpc-timeout", b"5S")), "the call's time is up"),
    ("slow handler", unary_call(1, b"", SLOW, (b"grpc-timeout", b"5S")), "the call's time is up"),
    ("stream", open_call(1, BIDI, (b"grpc-timeout", b"5000m")), "the call's time is up"),
    ("large unit", open_call(1, BIDI, (b"grpc-timeout", b"5000000u")), "the call's time is up"),
]


@pytest.mark.parametrize(("data", "reason"), [case[1:] for case in TIMED], ids=[case[0] for case in TIMED])
def test_a_call_ends_at_its_deadline(data: bytes, reason: str) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        await client.send(data)
        await asyncio.sleep(4.999)
        assert await client.frames() == []
        assert server.server.calls_in_progress == 1
        await asyncio.sleep(0.002)
        assert client.status(await client.frames(), 1) == (DEADLINE, reason)
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_a_call_that_is_answered_in_time_has_no_deadline_left() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        await client.send(open_call(1, ECHO, (b"grpc-timeout", b"1S")))
        answers = await client.send(frame(DATA, END_STREAM, 1, message(b"x")))
        assert client.status(answers, 1) == (0, "")
        (context,) = server.contexts
        assert 0.98 <= context.time_remaining() <= 1.0
        await asyncio.sleep(10)
        assert context.time_remaining() == 0.0
        assert await client.frames() == []
        await client.send(open_call(3, ECHO))
        await client.send(frame(DATA, END_STREAM, 3, message(b"x")))
        assert server.contexts[-1].time_remaining() is None

    run_in_simulated_time(run)


def test_an_answer_that_is_not_read_by_the_deadline_is_dropped() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server, (INITIAL_WINDOW, 0))
        await client.send(unary_call(1, b"answer", ECHO, (b"grpc-timeout", b"3S")))
        await client.send(unary_call(3, b"answer", ECHO, (b"grpc-timeout", b"3S")))
        await client.send(window(3, 100))
        await asyncio.sleep(2.9)
        assert await client.frames() == []
        await asyncio.sleep(0.2)
        assert await client.frames() == [Frame(RESET, 0, 1, number_of(CANCEL))]
        assert (server.server.calls_in_progress, client.connection.responses.unsent_bytes) == (0, 0)

    run_in_simulated_time(run)
