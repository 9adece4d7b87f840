"""The state machine of an HTTP/2 connection, fed with frames in memory: what it answers, refuses and lets go of."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import zlib
from typing import Any

import grpc
import pytest

from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.rpc.frames import (
    ACK,
    CANCEL,
    CLOSED,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW,
    FRAME_BYTES,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH,
    REFUSED,
    RESET,
    SETTING,
    SETTINGS,
    SIZE,
    WINDOW,
    WINDOW_BYTES,
    WITH_PRIORITY,
    BrokenError,
    frame,
)
from jellybean_agent.rpc.http2_flood import FloodGuard
from tests.support.http2_client import (
    BIDI,
    BREAK,
    ECHO,
    INITIAL_WINDOW,
    MAX_FRAME,
    SLOW,
    SPLIT,
    CallServer,
    Frame,
    Http2Client,
    call_headers,
    content,
    goaway,
    is_acknowledged,
    message,
    open_call,
    settings,
    settle,
    split_frames,
    unary_call,
)
from tests.support.simulated_time import run_in_simulated_time

UNKNOWN, INVALID, DEADLINE, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 2, 3, 4, 8, 12, 13, 14
RANDOM = os.urandom(2**18)


def number_of(size: int) -> bytes:
    return size.to_bytes(4, "big")


def window(number: int, more: int) -> bytes:
    return frame(WINDOW, 0, number, number_of(more))


def reset(number: int) -> bytes:
    return frame(RESET, 0, number, number_of(CANCEL))


async def greeted(server: CallServer | None = None, *values: tuple[int, int]) -> Http2Client:
    """A client whose connection has begun."""
    client = Http2Client((server or CallServer()).server)
    await client.greet(*values)
    return client


def test_a_connection_begins_with_the_settings_of_both_sides() -> None:
    async def run() -> None:
        server = CallServer(max_streams=7)
        for pieces in (0, 1, 23):
            client = Http2Client(server.server)
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
        client = await greeted(server)
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
        client = await greeted(server)
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
        client = await greeted(server)
        calls = [(1, known, 0), (3, unknown, UNIMPLEMENTED), (5, known, 0), (7, unknown, UNIMPLEMENTED)]
        for number, path, status in calls:
            assert client.status(await client.send(unary_call(number, b"x", path)), number)[0] == status
        assert asked == [known, unknown, unknown]

    run_in_simulated_time(run)


BLOCK = call_headers(ECHO)
OPENED = open_call(1, BIDI)
BROKEN: list[tuple[str, bytes, int, str]] = [
    ("ping of 7 bytes", frame(PING, 0, 0, bytes(7)), SIZE, "a PING of another size"),
    ("ping of a stream", OPENED + frame(PING, 0, 1, bytes(8)), SIZE, "a PING of another size"),
    ("settings of a stream", OPENED + frame(SETTINGS, 0, 1, b""), SIZE, "SETTINGS of another size"),
    ("settings cut", frame(SETTINGS, 0, 0, bytes(5)), SIZE, "SETTINGS of another size"),
    ("window too large", settings((INITIAL_WINDOW, 2**31)), FLOW, "a window of 2147483648"),
    ("frames too small", settings((MAX_FRAME, 2**14 - 1)), PROTOCOL_ERROR, "frames of 16383"),
    ("frames too large", settings((MAX_FRAME, 2**24)), PROTOCOL_ERROR, "frames of 16777216"),
    ("update of 3 bytes", OPENED + frame(WINDOW, 0, 1, bytes(3)), SIZE, "a WINDOW_UPDATE of another size"),
    ("update of no stream", OPENED + window(3, 1), PROTOCOL_ERROR, "a WINDOW_UPDATE of no stream"),
    ("empty update", OPENED + window(1, 0), FLOW, "a stream's window out of bounds"),
    ("empty update of all", window(0, 0), FLOW, "a connection's window out of bounds"),
    ("stream overflow", OPENED + window(1, 2**31 - 1), FLOW, "a stream's window out of bounds"),
    ("overflow of all", window(0, 2**31 - 2**16 + 1), FLOW, "a connection's window out of bounds"),
    ("reset of stream 0", OPENED + frame(RESET, 0, 0, bytes(4)), PROTOCOL_ERROR, "a RST_STREAM of no stream"),
    ("reset of no stream", OPENED + reset(3), PROTOCOL_ERROR, "a RST_STREAM of no stream"),
    ("reset of 3 bytes", OPENED + frame(RESET, 0, 1, bytes(3)), PROTOCOL_ERROR, "a RST_STREAM of no stream"),
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
    ("headers twice", OPENED + frame(HEADERS, END_HEADERS, 1, BLOCK), PROTOCOL_ERROR, "headers twice"),
    (
        "headers after the end",
        unary_call(1, b"", SLOW) + frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK),
        CLOSED,
        "headers after a stream's end",
    ),
    ("data after the end", unary_call(1, b"", SLOW) + frame(DATA, 0, 1, b"x"), CLOSED, "DATA after a stream's end"),
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
    ("no message", OPENED + frame(DATA, 0, 1, message(b"x", compressed=2)), PROTOCOL_ERROR, "no gRPC message"),
    (
        "more than the window",
        open_call(1, ECHO) + frame(DATA, 0, 1, message(bytes(WINDOW_BYTES - 5))) + frame(DATA, 0, 1, b"x"),
        FLOW,
        "more than a stream's window",
    ),
    ("no call", frame(HEADERS, END_HEADERS, 1, call_headers(ECHO, method=b"GET")), PROTOCOL_ERROR, "no gRPC call"),
    ("no timeout", open_call(1, ECHO, (b"grpc-timeout", b"5x")), PROTOCOL_ERROR, "no timeout"),
    ("long timeout", open_call(1, ECHO, (b"grpc-timeout", b"123456789S")), PROTOCOL_ERROR, "no timeout"),
    ("no header block", frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION, "too large"),
]


@pytest.mark.parametrize(("data", "code", "reason"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_client_that_breaks_the_protocol_is_told_and_its_calls_are_cancelled(
    data: bytes, code: int, reason: str
) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server)
        answers = await client.send(data + unary_call(99, b"too late"))
        last, found_code, found_reason = goaway(answers)
        opened = [context.number for context in server.contexts]
        assert (found_code, reason in found_reason) == (code, True), found_reason
        assert last in (0, 1, 2)
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
        client = Http2Client(CallServer().server)
        answers = await client.send(begin)
        assert goaway(answers) == (0, PROTOCOL_ERROR, reason)
        assert client.transport.is_closing()

    run_in_simulated_time(run)


def test_control_frames_are_answered_or_ignored() -> None:
    async def run() -> None:
        client = await greeted()
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
            (INTERNAL, "a message that is no identity"),
        ),
    ],
)
def test_a_call_that_cannot_be_served_ends_with_its_status_and_the_connection_goes_on(
    call: bytes, status: tuple[int, str]
) -> None:
    async def run() -> None:
        server = CallServer(max_message_bytes=1000)
        client = await greeted(server)
        code, text = client.status(await client.send(call), 1)
        assert (code, status[1] in text) == (status[0], True), text
        assert server.server.calls_in_progress == 0
        answers = await client.send(frame(DATA, 0, 1, b"late") + unary_call(3, b"on"))
        assert content(answers, 3) == message(b"on")

    run_in_simulated_time(run)


def test_a_call_that_ends_before_its_request_is_reset_with_no_error() -> None:
    async def run() -> None:
        client = await greeted()
        answers = await client.send(open_call(1, "/no.Such/Method"))
        assert [(found.kind, found.payload) for found in answers[1:]] == [(RESET, number_of(NO_ERROR))]

    run_in_simulated_time(run)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_messages_are_read_up_to_the_limit(encoding: str) -> None:
    packed = gzip.compress if encoding == "gzip" else zlib.compress

    async def run() -> None:
        client = await greeted(CallServer(max_message_bytes=1000))
        head = (b"grpc-encoding", encoding.encode())

        def call(number: int, data: bytes) -> bytes:
            return open_call(number, ECHO, head) + frame(DATA, END_STREAM, number, message(data, compressed=1))

        assert content(await client.send(call(1, packed(bytes(1000)))), 1) == message(bytes(1000))
        for number, data in ((3, packed(bytes(1001))), (5, b"not packed"), (7, packed(bytes(1000))[:-1])):
            code, text = client.status(await client.send(call(number, data)), number)
            assert (code, text) == (INTERNAL, f"a message that is no {encoding}, or larger than max")
        assert content(await client.send(unary_call(9, b"plain", ECHO, head)), 9) == message(b"plain")

    run_in_simulated_time(run)


@pytest.mark.parametrize("pieces", [0, 1000])
@pytest.mark.parametrize("size", [2**14 - 6, 2**14 - 5, 2**14, 2**17 + 3])
def test_large_messages_arrive_whole_in_any_frames(size: int, pieces: int) -> None:
    """From 16 KiB on they are received straight into their memory, in part or in whole."""

    async def run() -> None:
        server = CallServer()
        client = await greeted(server, (INITIAL_WINDOW, 2**30))
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
        client = await greeted()
        plain = len(client.connection.get_buffer(-1))
        begin = frame(DATA, 0, 1, message(RANDOM[:100_000]))
        await client.send(open_call(1, BIDI) + begin[: 9 + 5 + 1000])
        assert plain < len(client.connection.get_buffer(-1)) == 99_000
        await client.send(begin[9 + 5 + 1000 : -(2**14)])
        assert len(client.connection.get_buffer(-1)) == plain, "its last bytes come with what follows"

    run_in_simulated_time(run)


def test_a_request_is_kept_apart_from_the_read_buffer_until_its_stream_ends() -> None:
    async def run() -> None:
        client = await greeted()
        await client.send(open_call(1, ECHO) + frame(DATA, 0, 1, message(b"kept")))
        await client.send(unary_call(3, b"x" * 2000))
        assert content(await client.send(frame(DATA, END_STREAM, 1, b"")), 1) == message(b"kept")
        await client.send(open_call(5, ECHO) + frame(DATA, 0, 5, message(b"trailers")))
        end = frame(HEADERS, END_HEADERS | END_STREAM, 5, b"")
        assert content(await client.send(end), 5) == message(b"trailers")

    run_in_simulated_time(run)


def test_answers_leave_as_far_as_both_windows_and_the_frame_size_allow() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server, (INITIAL_WINDOW, 10))
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
        client = await greeted(None, (MAX_FRAME, 2**17))
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
        client = await greeted(None, (INITIAL_WINDOW, 0))
        answers = await client.send(unary_call(1, b"hello"))
        assert [found.kind for found in answers] == [HEADERS]
        answers = await client.send(settings((INITIAL_WINDOW, 100)))
        assert (content(answers, 1), client.status(answers, 1)) == (message(b"hello"), (0, ""))

    run_in_simulated_time(run)


def test_a_handler_waits_until_most_of_its_answer_has_left() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server, (INITIAL_WINDOW, 0))
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
        client = await greeted(server)
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
        client = await greeted(server, (INITIAL_WINDOW, 2**30), (MAX_FRAME, 2**20))
        await client.send(window(0, 2**30))
        client.transport.is_blocked = True
        large = RANDOM * 4
        await client.send(unary_call(7, large[: 2**19]))
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
        server = CallServer(max_message_bytes=100)
        client = await greeted(server, (INITIAL_WINDOW, 0))
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


@pytest.mark.parametrize("how", ["reset", "lost", "broken"])
def test_a_call_is_cancelled_with_its_stream(how: str) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server)
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
        client = await greeted(server)
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
        client = await greeted(server)
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
        client = await greeted(server)
        await client.send(data)
        await asyncio.sleep(4.999)
        assert await client.frames() == []
        assert server.server.calls_in_progress == 1
        await asyncio.sleep(0.002)
        assert client.status(await client.frames(), 1) == (DEADLINE, reason)
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_a_raw_stream_ends_at_its_deadline() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.add_raw_stream(BIDI, Collector)
        client = await greeted(server)
        await client.send(open_call(1, BIDI, (b"grpc-timeout", b"2S")))
        await asyncio.sleep(1.999)
        assert await client.frames() == []
        await asyncio.sleep(0.002)
        assert client.status(await client.frames(), 1) == (DEADLINE, "the call's time is up")

    run_in_simulated_time(run)


def test_a_call_that_is_answered_in_time_has_no_deadline_left() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server)
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
        client = await greeted(server, (INITIAL_WINDOW, 0))
        await client.send(unary_call(1, b"answer", ECHO, (b"grpc-timeout", b"3S")))
        await client.send(unary_call(3, b"answer", ECHO, (b"grpc-timeout", b"3S")))
        await client.send(window(3, 100))
        await asyncio.sleep(2.9)
        assert await client.frames() == []
        await asyncio.sleep(0.2)
        assert await client.frames() == [Frame(RESET, 0, 1, number_of(CANCEL))]
        assert (server.server.calls_in_progress, client.connection.responses.unsent_bytes) == (0, 0)

    run_in_simulated_time(run)


def test_calls_above_the_limit_are_refused_until_others_end() -> None:
    async def run() -> None:
        server = CallServer(max_calls=2)
        client, other = await greeted(server), await greeted(server)
        await client.send(unary_call(1, b"", SLOW) + unary_call(3, b"", SLOW))
        answers = await other.send(unary_call(1, b"x"))
        assert other.status(answers, 1) == (EXHAUSTED, "2 calls are in progress, which is the limit")
        await client.send(reset(3))
        assert other.status(await other.send(unary_call(3, b"x")), 3) == (0, "")

    run_in_simulated_time(run)


def test_streams_above_the_limit_end_the_connection() -> None:
    async def run() -> None:
        server = CallServer(max_streams=2)
        client = await greeted(server)
        answers = await client.send(b"".join(unary_call(number, b"", SLOW) for number in (1, 3)))
        assert not client.transport.is_closing()
        answers = await client.send(unary_call(5, b"", SLOW))
        assert goaway(answers) == (5, ENHANCE_YOUR_CALM, "more than 2 streams")

    run_in_simulated_time(run)


def test_a_connection_that_retires_takes_calls_until_its_client_can_know() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted(server)
        await client.send(unary_call(1, b"", SLOW))
        client.connection.retire()
        assert goaway(await client.frames()) == (2**31 - 1, NO_ERROR, "")
        answers = await client.send(unary_call(3, b"x"))
        assert client.status(answers, 3) == (0, "")
        await asyncio.sleep(1.001)
        assert goaway(await client.frames()) == (3, NO_ERROR, "")
        answers = await client.send(unary_call(5, b"x"))
        assert [(found.kind, found.number, found.payload) for found in answers] == [(RESET, 5, number_of(REFUSED))]
        client.connection.drain()
        assert await client.frames() == [], "it was told already"
        assert server.server.calls_in_progress == 1
        client.connection.close("the end")
        answers = split_frames(client.transport.take())
        assert client.status(answers, 1) == (UNAVAILABLE, "the end")
        await settle()
        assert server.cancelled == [1]
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 0)

    run_in_simulated_time(run)


def test_a_client_that_leaves_opens_no_more_calls() -> None:
    async def run() -> None:
        client = await greeted()
        answers = await client.send(frame(GOAWAY, 0, 0, bytes(8)) + unary_call(1, b"x"))
        assert [found.kind for found in answers] == [RESET]

    run_in_simulated_time(run)


def test_a_server_that_stops_waits_for_calls_and_then_ends_them() -> None:
    async def run() -> None:
        server = CallServer()
        quick, slow = await greeted(server), await greeted(server)
        await quick.send(open_call(1, BIDI))
        await slow.send(unary_call(1, b"", SLOW))
        stopping = asyncio.create_task(server.server.stop(2.0))
        await asyncio.sleep(1.0)
        assert goaway(await slow.frames())[0] == 1
        answers = await quick.send(frame(DATA, END_STREAM, 1, message(b"last")))
        assert quick.status(answers, 1) == (0, "")
        assert not stopping.done()
        await asyncio.sleep(1.1)
        assert slow.status(await slow.frames(), 1) == (UNAVAILABLE, "the server is shutting down")
        await stopping
        assert slow.transport.is_closing()
        assert quick.transport.is_closing()
        await server.server.wait_for_termination()

    run_in_simulated_time(run)


FLOODS = [
    ("pings", frame(PING, 0, 0, bytes(8))),
    ("settings", settings()),
    ("priorities", frame(PRIORITY, 0, 1, bytes(5))),
    ("updates of all", window(0, 1)),
    ("updates of a stream", window(1, 1)),
    ("updates of a closed stream", window(3, 1)),
    ("empty data", frame(DATA, 0, 1, b"")),
    ("data of a closed stream", frame(DATA, 0, 3, b"x")),
    ("resets of a closed stream", reset(3)),
    ("trailers of a closed stream", frame(HEADERS, END_HEADERS | END_STREAM, 3, b"")),
    ("empty continuations", frame(CONTINUATION, 0, 5, b"")),
]


@pytest.mark.parametrize("data", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_frames_without_effect_are_counted_until_a_call_is_answered(data: bytes) -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(idle_frames=20)
        client = await greeted(server)
        await client.send(open_call(1, BIDI) + unary_call(3, b"x"))
        if data[3] == CONTINUATION:
            await client.send(frame(HEADERS, 0, 5, b""))
        else:
            await client.send(data * 15)
            await client.send(unary_call(7, b"x"))
            await client.send(data * 15)
            assert not client.transport.is_closing()
        answers = await client.send(data * 21)
        assert goaway(answers)[1:] == (ENHANCE_YOUR_CALM, "20 frames without effect")

    run_in_simulated_time(run)


def test_answers_pay_for_the_frames_that_acknowledge_them() -> None:
    guard = FloodGuard(FloodLimits(idle_frames=10))
    for _ in range(10):
        guard.count_idle()
    guard.message_sent(100)
    assert guard.idle_frames == 8
    guard.message_sent(2**14)
    assert guard.idle_frames == 4
    guard.message_sent(2**20)
    assert guard.idle_frames == 0
    for _ in range(10):
        guard.count_idle()
    with pytest.raises(BrokenError, match="10 frames without effect"):
        guard.count_idle()


def test_settings_cost_more_with_more_streams() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(idle_frames=20, streams_per_frame=2)
        client = await greeted(server)
        await client.send(b"".join(open_call(number, BIDI) for number in range(1, 9, 2)))
        await client.send(settings() * 6)
        assert not client.transport.is_closing(), "6 times 1 + 4 / 2, and one before"
        assert goaway(await client.send(settings()))[1] == ENHANCE_YOUR_CALM

    run_in_simulated_time(run)


def test_calls_that_are_opened_and_reset_are_counted_over_time() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(resets=4, resets_per_s=1.0)
        client = await greeted(server)
        numbers = iter(range(1, 999, 2))

        async def rapid(count: int) -> list[Frame]:
            found = []
            for _ in range(count):
                number = next(numbers)
                found += await client.send(unary_call(number, b"", SLOW) + reset(number))
            return found

        assert await rapid(4) == []
        await asyncio.sleep(2.0)
        assert await rapid(2) == []
        number = next(numbers)
        await client.send(unary_call(number, b"x"))
        assert await rapid(1) == [], "an answered call allows one more"
        assert goaway(await rapid(1))[1:] == (ENHANCE_YOUR_CALM, "4 calls that were begun and reset")

    run_in_simulated_time(run)
