"""Single frames of an HTTP/2 connection: which are answered, which ignored, and which break the protocol."""

from __future__ import annotations

import pytest

from jellybean_agent.rpc.frames import (
    ACK,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH,
    RESET,
    SETTINGS,
    SIZE,
    WINDOW,
    WINDOW_BYTES,
    WITH_PRIORITY,
    frame,
)
from tests.support.http2_client import (
    BIDI,
    ECHO,
    ENABLE_PUSH,
    INITIAL_WINDOW,
    MAX_FRAME,
    CallServer,
    Frame,
    Http2Client,
    call_headers,
    content,
    goaway,
    greeted_client,
    message,
    open_call,
    reset,
    settings,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time

BLOCK = call_headers(ECHO)
OPENED = open_call(1, BIDI)
BROKEN: list[tuple[str, bytes, int, str]] = [
    ("ping of 7 bytes", frame(PING, 0, 0, bytes(7)), SIZE, "a PING of another size"),
    ("ping of a stream", OPENED + frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR, "a PING of a stream"),
    ("settings of a stream", OPENED + frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR, "SETTINGS of a stream"),
    ("settings acknowledged with more", frame(SETTINGS, ACK, 0, bytes(6)), SIZE, "SETTINGS of another size"),
    ("push of two", settings((ENABLE_PUSH, 2)), PROTOCOL_ERROR, "ENABLE_PUSH of 2"),
    ("goaway of a stream", OPENED + frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR, "a GOAWAY of a stream"),
    ("goaway of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), SIZE, "a GOAWAY of another size"),
    ("priority of no stream", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR, "a PRIORITY of no stream"),
    (
        "headers with half a priority",
        frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"abc"),
        SIZE,
        "HEADERS without the priority that they announce",
    ),
    (
        "a number below an open one",
        open_call(5, BIDI) + frame(HEADERS, END_HEADERS | END_STREAM, 3, BLOCK),
        PROTOCOL_ERROR,
        "stream 3 is below one that is open already",
    ),
    ("data of a number below", open_call(5, BIDI) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR, "stream 1 is below one"),
    ("settings cut", frame(SETTINGS, 0, 0, bytes(5)), SIZE, "SETTINGS of another size"),
    ("window too large", settings((INITIAL_WINDOW, 2**31)), FLOW, "a window of 2147483648"),
    ("frames too small", settings((MAX_FRAME, 2**14 - 1)), PROTOCOL_ERROR, "frames of 16383"),
    ("frames too large", settings((MAX_FRAME, 2**24)), PROTOCOL_ERROR, "frames of 16777216"),
    ("update of 3 bytes", OPENED + frame(WINDOW, 0, 1, bytes(3)), SIZE, "a WINDOW_UPDATE of another size"),
    ("update of no stream", OPENED + window(3, 1), PROTOCOL_ERROR, "a WINDOW_UPDATE of no stream"),
    ("empty update of all", window(0, 0), PROTOCOL_ERROR, "a WINDOW_UPDATE of nothing"),
    (
        "stream overflow by settings",
        OPENED + window(1, 2**31 - 2**16) + settings((INITIAL_WINDOW, 2**17)),
        FLOW,
        "a stream's window out of bounds",
    ),
    ("overflow of all", window(0, 2**31 - 2**16 + 1), FLOW, "a connection's window out of bounds"),
    ("reset of stream 0", OPENED + frame(RESET, 0, 0, bytes(4)), PROTOCOL_ERROR, "a RST_STREAM of no stream"),
    ("reset of no stream", OPENED + reset(3), PROTOCOL_ERROR, "a RST_STREAM of no stream"),
    ("reset of 3 bytes", OPENED + frame(RESET, 0, 1, bytes(3)), SIZE, "a RST_STREAM of another size"),
    ("push", frame(PUSH, 0, 2, bytes(4)), PROTOCOL_ERROR, "a client does not push"),
    ("data of stream 0", OPENED + frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR, "DATA of no stream"),
    ("data of no stream", OPENED + frame(DATA, 0, 3, b"x"), PROTOCOL_ERROR, "DATA of no stream"),
    ("even stream", frame(HEADERS, END_HEADERS, 2, BLOCK), PROTOCOL_ERROR, "an odd number, not 2"),
    ("lone continuation", frame(CONTINUATION, END_HEADERS, 1, BLOCK), PROTOCOL_ERROR, "a CONTINUATION of nothing"),
    ("no continuation", frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR, "not continued"),
    (
        "continuation of another",
        frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b""),
        PROTOCOL_ERROR,
        "not continued",
    ),
    ("large frame", frame(DATA, 0, 1, b"")[:0] + bytes((16, 0, 1, DATA, 0, 0, 0, 0, 1)), SIZE, "1048577 bytes"),
    ("large headers", frame(HEADERS, 0, 1, bytes(HEADER_BYTES + 1))[:9], SIZE, "of kind 1 of 32769 bytes"),
    (
        "large block",
        frame(HEADERS, 0, 1, bytes(HEADER_BYTES)) + frame(CONTINUATION, 0, 1, b"x"),
        ENHANCE_YOUR_CALM,
        "a header block above 32768 bytes",
    ),
    ("all padding", OPENED + frame(DATA, PADDED, 1, b"\x01"), PROTOCOL_ERROR, "more padding than frame"),
    ("no padding", OPENED + frame(DATA, PADDED, 1, b""), PROTOCOL_ERROR, "more padding than frame"),
    (
        "more than the window",
        open_call(1, ECHO) + frame(DATA, 0, 1, message(bytes(WINDOW_BYTES - 5))) + frame(DATA, 0, 1, b"x"),
        FLOW,
        "more than a stream's window",
    ),
    ("no header block", frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION, "too large"),
]


@pytest.mark.parametrize(("data", "code", "reason"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_client_that_breaks_the_protocol_is_told_and_its_calls_are_cancelled(
    data: bytes, code: int, reason: str
) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        answers = await client.send(data + unary_call(99, b"too late"))
        last, found_code, found_reason = goaway(answers)
        opened = [context.number for context in server.contexts]
        assert (found_code, reason in found_reason) == (code, True), found_reason
        assert last in (0, 1, 2, 5)
        assert 99 not in opened, "nothing is read after that"
        assert client.transport.is_closing()
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 0)

    run_in_simulated_time(run)


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "no HTTP/2 preface"),
        (PREFACE[:-1] + b"x", "no HTTP/2 preface"),
        (PREFACE + frame(PING, 0, 0, bytes(8)), "no SETTINGS first"),
        (b"JELLYBEAN LANE 1\n", "no HTTP/2 preface"),  # of Unix sockets only
    ],
)
def test_what_does_not_begin_as_http2_is_refused(begin: bytes, reason: str) -> None:
    async def run() -> None:
        client = Http2Client(CallServer().port)
        answers = await client.send(begin)
        assert goaway(answers) == (0, PROTOCOL_ERROR, reason)
        assert client.transport.is_closing()

    run_in_simulated_time(run)


def test_control_frames_are_answered_or_ignored() -> None:
    async def run() -> None:
        client = await greeted_client()
        assert await client.send(frame(PING, 0, 0, b"12345678")) == [Frame(PING, ACK, 0, b"12345678")]
        assert await client.send(frame(PING, ACK, 0, b"12345678")) == []
        assert await client.send(frame(PRIORITY, 0, 1, bytes(5)) + frame(200, 255, 7, b"extension")) == []
        assert await client.send(settings((INITIAL_WINDOW, 2**31 - 1), (MAX_FRAME, 2**14), (99, 1))) == [
            Frame(SETTINGS, ACK, 0, b"")
        ]
        padded = frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x03" + bytes(5) + BLOCK + bytes(3))
        first, rest = message(b"padded")[:4], message(b"padded")[4:]
        data = frame(DATA, PADDED, 1, b"\x02" + first + b"pp") + frame(DATA, PADDED | END_STREAM, 1, b"\0" + rest)
        answers = await client.send(padded + data)
        assert content(answers, 1) == message(b"padded")
        parts = frame(HEADERS, 0, 3, BLOCK[:10]) + frame(CONTINUATION, 0, 3, BLOCK[10:20])
        parts += frame(CONTINUATION, END_HEADERS, 3, BLOCK[20:]) + frame(DATA, END_STREAM, 3, message(b"in parts"))
        assert content(await client.send(parts), 3) == message(b"in parts")

    run_in_simulated_time(run)
