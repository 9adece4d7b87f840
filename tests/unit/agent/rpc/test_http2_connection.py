"""Calls of an HTTP/2 connection, fed with frames in memory: how they are answered, fail and are cancelled."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from jellybean_agent.rpc.frames import (
    ACK,
    DATA,
    END_STREAM,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADERS,
    NO_ERROR,
    PREFACE,
    PUSH,
    RESET,
    SETTING,
    SETTINGS,
    WINDOW,
    WINDOW_BYTES,
    frame,
)
from tests.support.http2_client import (
    BIDI,
    BREAK,
    ECHO,
    EXHAUSTED,
    INITIAL_WINDOW,
    INTERNAL,
    INVALID,
    MAX_FRAME,
    SLOW,
    SPLIT,
    UNIMPLEMENTED,
    UNKNOWN,
    CallServer,
    Http2Client,
    content,
    greeted_client,
    is_acknowledged,
    message,
    number_of,
    open_call,
    reset,
    settings,
    settle,
    unary_call,
)
from tests.support.simulated_time import run_in_simulated_time


def test_a_connection_begins_with_the_settings_of_both_sides() -> None:
    async def run() -> None:
        server = CallServer(streams=7)
        for pieces in (0, 1, 23):
            client = Http2Client(server.port)
            first = await client.send(PREFACE + settings((INITIAL_WINDOW, 100)), pieces)
            assert [(found.kind, found.number) for found in first] == [(SETTINGS, 0), (WINDOW, 0), (SETTINGS, 0)]
            assert dict(SETTING.iter_unpack(first[0].payload)) == {
                3: 7,
                INITIAL_WINDOW: WINDOW_BYTES,
                MAX_FRAME: FRAME_BYTES,
                6: HEADER_BYTES,
            }
            assert int.from_bytes(first[1].payload, "big") + 2**16 - 1 == 2**30, "the connection's window"
            assert is_acknowledged(first)
            assert await client.send(frame(SETTINGS, ACK, 0, b"")) == []
        assert server.server.open_connections == 3
        client.transport.lose()
        assert server.server.open_connections == 2

    run_in_simulated_time(run)


@pytest.mark.parametrize("pieces", [0, 1, 9, 10])
def test_calls_are_answered_however_their_bytes_come(pieces: int) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        answers = await client.send(unary_call(1, b"one") + unary_call(3, b"") + unary_call(5, b"abc", SPLIT), pieces)
        assert content(answers, 1) == message(b"one")
        assert content(answers, 3) == message(b"")
        assert content(answers, 5) == b"".join(message(bytes([octet])) for octet in b"abc")
        for number in (1, 3, 5):
            assert client.status(answers, number) == (0, "")
            mine = [found for found in answers if found.number == number]
            assert [found.kind for found in (mine[0], mine[-1])] == [HEADERS, HEADERS]
            assert client.headers(mine[0]) == {
                b":status": b"200",
                b"content-type": b"application/grpc",
                b"grpc-accept-encoding": b"gzip",
            }
            assert not any(found.kind == RESET for found in mine), "the client has ended its side"
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_answers_to_one_read_leave_in_one_write() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.add_raw(ECHO, lambda call, data: call.reply(bytes(data)) is None)
        client = await greeted_client(server)
        await client.send(unary_call(1, b"x"))
        client.transport.writes = 0
        answers = await client.send(b"".join(unary_call(number, b"x") for number in (3, 5, 7)))
        assert [client.status(answers, number) for number in (3, 5, 7)] == [(0, "")] * 3
        assert client.transport.writes == 1

    run_in_simulated_time(run)


def test_a_method_is_looked_up_once_and_an_unknown_one_each_time() -> None:
    known, unknown = "/test.Noted/Known", "/test.Noted/Unknown"
    asked: list[str] = []

    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    class Noted(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            asked.append(details.method)
            return grpc.unary_unary_rpc_method_handler(echo) if details.method == known else None

    async def run() -> None:
        server = CallServer()
        server.server.add_generic_rpc_handlers([Noted()])
        client = await greeted_client(server)
        calls = [(1, known, 0), (3, unknown, UNIMPLEMENTED), (5, known, 0), (7, unknown, UNIMPLEMENTED)]
        for number, path, status in calls:
            assert client.status(await client.send(unary_call(number, b"x", path)), number)[0] == status
        assert asked == [known, unknown, unknown]

    run_in_simulated_time(run)


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (unary_call(1, b"", BREAK), (UNKNOWN, "Unexpected ZeroDivisionError")),
        (unary_call(1, b"", "/no.Such/Method"), (UNIMPLEMENTED, "no method /no.Such/Method")),
        (unary_call(1, b"", ECHO, (b"grpc-encoding", b"br")), (UNIMPLEMENTED, "messages in br are not read; gzip is")),
        (open_call(1, ECHO) + frame(DATA, END_STREAM, 1, b""), (INVALID, "a call without a request")),
        (open_call(1, ECHO) + frame(DATA, END_STREAM, 1, message(b"abc")[:7]), (INVALID, "ended within a message")),
        (open_call(1, ECHO) + frame(DATA, END_STREAM, 1, message(b"abc")[:3]), (INVALID, "ended within a message")),
        (open_call(1, ECHO) + frame(DATA, END_STREAM, 1, message(b"a") * 2), (INVALID, "a second request in a call")),
        (
            open_call(1, ECHO) + frame(DATA, 0, 1, message(bytes(1001))),
            (EXHAUSTED, "1001 bytes is larger than max (1000)"),
        ),
        (
            open_call(1, ECHO) + frame(DATA, 0, 1, message(b"x", compressed=1)),
            (INTERNAL, "a message is compressed, and no grpc-encoding says how"),
        ),
    ],
)
def test_a_call_that_cannot_be_served_ends_with_its_status_and_the_connection_goes_on(
    call: bytes, status: tuple[int, str]
) -> None:
    async def run() -> None:
        server = CallServer(message_bytes=1000)
        client = await greeted_client(server)
        code, text = client.status(await client.send(call), 1)
        assert (code, status[1] in text) == (status[0], True), text
        assert server.server.calls_in_progress == 0
        answers = await client.send(frame(DATA, 0, 1, b"late") + unary_call(3, b"on"))
        assert content(answers, 3) == message(b"on")

    run_in_simulated_time(run)


def test_a_call_that_ends_before_its_request_is_reset_with_no_error() -> None:
    async def run() -> None:
        client = await greeted_client()
        answers = await client.send(open_call(1, "/no.Such/Method"))
        assert [(found.kind, found.payload) for found in answers[1:]] == [(RESET, number_of(NO_ERROR))]

    run_in_simulated_time(run)


@pytest.mark.parametrize("how", ["reset", "lost", "broken"])
def test_a_call_is_cancelled_with_its_stream(how: str) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        await client.send(unary_call(1, b"", SLOW) + open_call(3, BIDI))
        over: list[int] = []
        for context in server.contexts:
            context.add_done_callback(lambda call: over.append(call.number))
        assert server.server.calls_in_progress == 2
        if how == "reset":
            await client.send(reset(1) + reset(3))
            assert server.server.open_connections == 1
        elif how == "lost":
            client.transport.lose(ConnectionResetError())
        else:
            await client.send(frame(PUSH, 0, 2, b""))
        await settle()
        assert server.cancelled == [1]
        assert over == [1, 3]
        assert all(context.done() and context.cancelled() for context in server.contexts)
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)
