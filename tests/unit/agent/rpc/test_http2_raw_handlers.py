"""Raw handlers of an HTTP/2 connection, which answer without a task: their cancellation, credit and deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jellybean_agent.rpc.frames import DATA, END_STREAM, WINDOW, WINDOW_BYTES, frame
from tests.support.http2_client import (
    BIDI,
    DEADLINE,
    ECHO,
    UNKNOWN,
    CallServer,
    Frame,
    content,
    greeted_client,
    message,
    number_of,
    open_call,
    reset,
    unary_call,
)
from tests.support.simulated_time import run_in_simulated_time


def test_a_raw_call_is_told_of_its_cancellation_and_answers_once() -> None:
    async def run() -> None:
        calls: list[Any] = []
        cancelled: list[int] = []

        def raw(call: Any, data: memoryview) -> bool:
            calls.append((call, bytes(data)))
            call.on_cancel = lambda: cancelled.append(call.number)
            return bytes(data) != b"by the handler"

        server = CallServer()
        server.server.add_raw(ECHO, raw)
        client = await greeted_client(server)
        await client.send(unary_call(1, b"first") + unary_call(3, b"second"))
        await client.send(reset(1))
        (first, _), (second, _) = calls
        first.reply(b"too late")
        second.reply(b"answer")
        second.reply(b"again")
        second.end(None, "again")
        answers = await client.frames()
        assert cancelled == [1]
        assert [found.number for found in answers] == [3, 3, 3]
        assert content(answers, 3) == message(b"answer")
        assert content(await client.send(unary_call(5, b"by the handler")), 5) == message(b"by the handler")

    run_in_simulated_time(run)


@pytest.mark.parametrize("error", [ZeroDivisionError(), OverflowError(), RecursionError()], ids=repr)
def test_a_raw_call_that_fails_unexpectedly_ends_alone(error: Exception) -> None:
    def raw(_call: Any, data: memoryview) -> bool:
        if bytes(data) == b"fail":
            raise error
        return False

    async def run() -> None:
        server = CallServer()
        server.server.add_raw(ECHO, raw)
        client = await greeted_client(server)
        neighbour = open_call(1, BIDI) + frame(DATA, 0, 1, message(b"before"))
        answers = await client.send(neighbour + unary_call(3, b"fail") + unary_call(5, b"next"))
        assert client.status(answers, 3) == (UNKNOWN, f"Unexpected {type(error).__name__}")
        assert (content(answers, 1), content(answers, 5)) == (message(b"before"), message(b"next"))
        assert content(await client.send(frame(DATA, END_STREAM, 1, message(b"after"))), 1) == message(b"after")

    run_in_simulated_time(run)


class Collector:
    """A raw stream's receiver."""

    def __init__(self, call: Any) -> None:
        self.call, self.got, self.has_ended = call, list[bytes](), False

    def receive(self, message: bytes) -> None:
        if message == b"fail":
            raise ZeroDivisionError
        self.got.append(message)
        self.call.send_response(message)

    def end_of_requests(self) -> None:
        self.has_ended = True


def test_a_raw_stream_gets_its_messages_without_a_task_and_gives_credit() -> None:
    async def run() -> None:
        streams: list[Collector] = []

        def begin(call: Any) -> Collector:
            streams.append(Collector(call))
            return streams[-1]

        server = CallServer()
        server.server.add_raw_stream(BIDI, begin)
        client = await greeted_client(server)
        tasks = len(asyncio.all_tasks())
        answers = await client.send(open_call(1, BIDI) + frame(DATA, 0, 1, message(b"a") + message(b"b")))
        assert (streams[0].got, streams[0].has_ended) == ([b"a", b"b"], False)
        assert content(answers, 1) == message(b"a") + message(b"b")
        assert len(asyncio.all_tasks()) == tasks
        answers = await client.send(frame(DATA, 0, 1, message(bytes(WINDOW_BYTES // 2))))
        assert [found for found in answers if found.kind == WINDOW] == [
            Frame(WINDOW, 0, 1, number_of(WINDOW_BYTES // 2 + 5 + 12))
        ]
        await client.send(frame(DATA, END_STREAM, 1, b""))
        assert streams[0].has_ended
        answers = await client.send(open_call(3, BIDI) + frame(DATA, 0, 3, message(b"fail") + message(b"more")))
        assert client.status(answers, 3) == (UNKNOWN, "Unexpected ZeroDivisionError")
        assert streams[1].got == []

    run_in_simulated_time(run)


def test_a_raw_stream_ends_at_its_deadline() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.add_raw_stream(BIDI, Collector)
        client = await greeted_client(server)
        await client.send(open_call(1, BIDI, (b"grpc-timeout", b"2S")))
        await asyncio.sleep(1.999)
        assert await client.frames() == []
        await asyncio.sleep(0.002)
        assert client.status(await client.frames(), 1) == (DEADLINE, "the call's time is up")

    run_in_simulated_time(run)
