"""A wrong request is refused on its own stream (RFC 9113, 5.4.2): other calls of the connection go on."""

from __future__ import annotations

import pytest

from jellybean_agent.rpc.frames import (
    CLOSED,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    HEADERS,
    PRIORITY,
    PROTOCOL_ERROR,
    RESET,
    SIZE,
    frame,
)
from jellybean_agent.rpc.hpack import Header, encode_headers
from tests.support.http2_client import (
    BIDI,
    ECHO,
    INTERNAL,
    INVALID,
    SLOW,
    CallServer,
    Frame,
    call_headers,
    content,
    greeted_client,
    message,
    number_of,
    open_call,
    reset,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time

PSEUDO: tuple[Header, ...] = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", ECHO.encode()))
FIELDS: tuple[Header, ...] = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))


def request(*headers: Header) -> bytes:
    """A request with one message and these headers."""
    return frame(HEADERS, END_HEADERS, 1, encode_headers(headers)) + frame(DATA, END_STREAM, 1, message(b"x"))


def with_field(name: bytes, value: bytes) -> bytes:
    return request(*PSEUDO, *FIELDS, (name, value))


TRAILERS = END_HEADERS | END_STREAM
RESETS: dict[str, tuple[bytes, int]] = {
    "no method": (request(*PSEUDO[1:], *FIELDS), PROTOCOL_ERROR),
    "no scheme": (request(PSEUDO[0], PSEUDO[2], *FIELDS), PROTOCOL_ERROR),
    "no path": (request(*PSEUDO[:2], *FIELDS), PROTOCOL_ERROR),
    "an empty path": (request(*PSEUDO[:2], (b":path", b""), *FIELDS), PROTOCOL_ERROR),
    "no pseudo-header": (request(*FIELDS), PROTOCOL_ERROR),
    "no header": (request(), PROTOCOL_ERROR),
    "a path twice": (request(*PSEUDO, (b":path", b"/a/b"), *FIELDS), PROTOCOL_ERROR),
    "an unknown pseudo-header": (request((b":test", b"x"), *PSEUDO, *FIELDS), PROTOCOL_ERROR),
    "a pseudo-header of responses": (request((b":status", b"200"), *PSEUDO, *FIELDS), PROTOCOL_ERROR),
    "a pseudo-header after others": (request(*PSEUDO[1:], *FIELDS, PSEUDO[0]), PROTOCOL_ERROR),
    "an upper-case name": (with_field(b"X-Upper", b"a"), PROTOCOL_ERROR),
    "an empty name": (with_field(b"", b"a"), PROTOCOL_ERROR),
    "a name with a space": (with_field(b"x y", b"a"), PROTOCOL_ERROR),
    "a name with a line": (with_field(b"x\ny", b"a"), PROTOCOL_ERROR),
    "a name with a colon": (with_field(b"x:y", b"a"), PROTOCOL_ERROR),
    "a name beyond ASCII": (with_field("é".encode(), b"a"), PROTOCOL_ERROR),
    "a value with CR": (with_field(b"x", b"a\rb"), PROTOCOL_ERROR),
    "a value with LF": (with_field(b"x", b"a\nb"), PROTOCOL_ERROR),
    "a value with NUL": (with_field(b"x", b"a\0b"), PROTOCOL_ERROR),
    "connection": (with_field(b"connection", b"keep-alive"), PROTOCOL_ERROR),
    "transfer-encoding": (with_field(b"transfer-encoding", b"chunked"), PROTOCOL_ERROR),
    "te: gzip": (request(*PSEUDO, (b"te", b"gzip"), FIELDS[1]), PROTOCOL_ERROR),
    "a longer content-length": (with_field(b"content-length", b"7"), PROTOCOL_ERROR),
    "a shorter content-length": (with_field(b"content-length", b"5"), PROTOCOL_ERROR),
    "a content-length that is no number": (with_field(b"content-length", b"-6"), PROTOCOL_ERROR),
    "a content-length beyond all content": (with_field(b"content-length", b"9" * 19), PROTOCOL_ERROR),
    "a content-length of more digits than Python converts": (
        with_field(b"content-length", b"9" * 5000),
        PROTOCOL_ERROR,
    ),
    "headers twice": (open_call(1, BIDI) + open_call(1, BIDI), PROTOCOL_ERROR),
    "trailers with a path": (open_call(1, BIDI) + frame(HEADERS, TRAILERS, 1, call_headers(BIDI)), PROTOCOL_ERROR),
    "trailers of a connection": (
        open_call(1, BIDI) + frame(HEADERS, TRAILERS, 1, encode_headers(((b"upgrade", b"x"),))),
        PROTOCOL_ERROR,
    ),
    "headers after the end": (
        unary_call(1, b"", SLOW) + frame(HEADERS, TRAILERS, 1, encode_headers(((b"x", b"y"),))),
        CLOSED,
    ),
    "data after the end": (unary_call(1, b"", SLOW) + frame(DATA, 0, 1, b"x"), CLOSED),
    "data after a reset": (open_call(1, BIDI) + reset(1) + frame(DATA, 0, 1, b"x"), CLOSED),
    "an empty window update": (open_call(1, BIDI) + window(1, 0), PROTOCOL_ERROR),
    "a window that overflows": (open_call(1, BIDI) + window(1, 2**31 - 1), FLOW),
    "a priority of 4 bytes": (open_call(1, BIDI) + frame(PRIORITY, 0, 1, bytes(4)), SIZE),
}


@pytest.mark.parametrize(("data", "code"), RESETS.values(), ids=RESETS)
def test_a_malformed_request_is_reset_and_its_neighbour_is_answered(data: bytes, code: int) -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        neighbour = open_call(3, BIDI) + frame(DATA, 0, 3, message(b"before"))
        answers = await client.send(data + neighbour + unary_call(5, b"another"))
        assert [found for found in answers if found.kind == RESET] == [Frame(RESET, 0, 1, number_of(code))]
        assert content(answers, 3) == message(b"before")
        assert content(answers, 5) == message(b"another")
        answers = await client.send(frame(DATA, END_STREAM, 3, message(b"after")))
        assert content(answers, 3) == message(b"after")
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 1)

    run_in_simulated_time(run)


def test_a_content_length_may_begin_with_zeros() -> None:
    async def run() -> None:
        client = await greeted_client()
        answers = await client.send(with_field(b"content-length", b"0" * 5000 + b"6"))
        assert content(answers, 1) == message(b"x")

    run_in_simulated_time(run)


@pytest.mark.parametrize(
    ("headers", "status", "more"),
    [
        ((((b":method", b"GET")), *PSEUDO[1:]), b"405", {b"allow": b"POST"}),
        ((*PSEUDO, (b"content-type", b"text/plain")), b"415", {b"accept": b"application/grpc"}),
        (PSEUDO, b"415", {b"accept": b"application/grpc"}),
    ],
    ids=["get", "text", "no type"],
)
@pytest.mark.parametrize("has_ended", [True, False])
def test_what_is_no_grpc_call_has_the_answer_of_http(
    headers: tuple[Header, ...], status: bytes, more: dict[bytes, bytes], has_ended: bool
) -> None:
    async def run() -> None:
        client = await greeted_client()
        flags = END_HEADERS | (END_STREAM if has_ended else 0)
        answers = await client.send(frame(HEADERS, flags, 1, encode_headers(headers)))
        assert (answers[0].kind, answers[0].flags, answers[0].number) == (HEADERS, TRAILERS, 1)
        assert client.headers(answers[0]) == {b":status": status, **more}
        assert answers[1:] == ([] if has_ended else [Frame(RESET, 0, 1, number_of(0))])
        rest = b"" if has_ended else frame(DATA, END_STREAM, 1, b"the client did not know yet")
        assert content(await client.send(rest + unary_call(3, b"next")), 3) == message(b"next")

    run_in_simulated_time(run)


@pytest.mark.parametrize("timeout", [b"5x", b"1 S", b"123456789S", b"S", b"", b"-1S", "１S".encode()])
def test_a_timeout_that_is_none_is_the_callers_error(timeout: bytes) -> None:
    async def run() -> None:
        client = await greeted_client()
        answers = await client.send(unary_call(1, b"x", ECHO, (b"grpc-timeout", timeout)) + unary_call(3, b"next"))
        status, text = client.status(answers, 1)
        assert (status, "is no grpc-timeout: write up to 8 digits" in text) == (INVALID, True)
        assert content(answers, 3) == message(b"next")

    run_in_simulated_time(run)


def test_a_message_with_an_unknown_flag_ends_its_call() -> None:
    async def run() -> None:
        client = await greeted_client()
        wrong = open_call(1, BIDI) + frame(DATA, 0, 1, message(b"x", compressed=2))
        answers = await client.send(wrong + unary_call(3, b"next"))
        assert client.status(answers, 1) == (INTERNAL, "a message has the flag 2: only 0 and 1 are known")
        assert content(answers, 3) == message(b"next")
        assert await client.send(frame(DATA, END_STREAM, 1, b"the client did not know yet")) == []

    run_in_simulated_time(run)


@pytest.mark.parametrize("value", [b" a", b"a\t", b"", b"a, b"])
def test_metadata_may_have_spaces(value: bytes) -> None:
    """gRPC over HTTP/2, ASCII-Value: they should not be at the ends, and are no reason to refuse a call."""

    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        assert content(await client.send(with_field(b"x-note", value)), 1) == message(b"x")
        ((_, context_value),) = [pair for pair in server.contexts[0].invocation_metadata() if pair[0] == "x-note"]
        assert context_value == value.decode()

    run_in_simulated_time(run)


@pytest.mark.parametrize("length", [None, 6])
def test_a_content_length_that_is_right_is_accepted_padding_apart(length: int | None) -> None:
    async def run() -> None:
        client = await greeted_client()
        more = () if length is None else ((b"content-length", str(length).encode()),)
        padded = frame(DATA, END_STREAM | 0x8, 1, b"\3" + message(b"x") + bytes(3))
        answers = await client.send(frame(HEADERS, END_HEADERS, 1, encode_headers((*PSEUDO, *FIELDS, *more))) + padded)
        assert content(answers, 1) == message(b"x")

    run_in_simulated_time(run)


def test_many_malformed_requests_are_a_flood() -> None:
    """Else a client could have the server open and reset calls without the limit of its own resets."""

    async def run() -> None:
        server = CallServer()
        limit = server.server.flood_limits.resets
        client = await greeted_client(server)
        wrong = encode_headers(FIELDS)
        data = b"".join(frame(HEADERS, TRAILERS, 2 * number + 1, wrong) for number in range(limit))
        answers = await client.send(data)
        assert [found.kind for found in answers] == [RESET] * limit
        await client.send(frame(HEADERS, TRAILERS, 2 * limit + 1, wrong))
        assert client.transport.is_closing()

    run_in_simulated_time(run)
