"""Our own gRPC server: what grpc's clients expect, and what nobody may do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from jellybean_agent import RpcCall, RpcServer
from jellybean_agent.rpc import http2
from jellybean_agent.rpc import unix_socket_frames as unix_frames
from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, WINDOW, frame
from jellybean_agent.rpc.hpack import encode_headers
from tests.rpc_server import (
    BIDI,
    BREAK,
    ECHO,
    LARGE,
    SLOW,
    Link,
    assert_echoes,
    call_of,
    headers_of,
    raw_connection,
    read_until,
    reset_of,
    send_in_two,
    served,
    slow_call,
    status,
)
from tests.support.waiting import wait_until_async

over_tls_too = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
FUZZ = int(os.environ.get("RPC_FUZZ", "300"))


@over_tls_too
def test_calls_of_every_size_and_kind(tmp_path: Path, tls: bool) -> None:
    async def ask(_server: RpcServer, link: Link) -> None:
        async with link.channel() as to:
            for message in (b"", b"x", LARGE[:20_000], LARGE, LARGE * 4):
                assert await to.unary_unary(ECHO)(message) == message
            found = await asyncio.gather(*(to.unary_unary(ECHO)(LARGE[: 1 << size % 20]) for size in range(200)))
            assert [len(message) for message in found] == [1 << size % 20 for size in range(200)]
            packed = to.unary_unary(ECHO)(LARGE[:1000] * 99, compression=grpc.Compression.Gzip)
            assert await packed == LARGE[:1000] * 99
            call = to.stream_stream(BIDI)()
            for number in range(100):
                await call.write(LARGE[: number * 10_000])
                assert len(await call.read()) == number * 10_000
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF

    served(tmp_path, ask, tls=tls)


@over_tls_too
def test_what_fails_says_why(tmp_path: Path, tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def ask(server: RpcServer, link: Link) -> None:
        async with link.channel() as to:
            code = grpc.StatusCode
            assert (await status(to.unary_unary(BREAK)(b"")))[0] is code.UNKNOWN
            assert await status(to.unary_unary("/no.Such/Method")(b"")) == (
                code.UNIMPLEMENTED,
                "no method /no.Such/Method",
            )
            assert (await status(to.unary_unary(SLOW)(b"", timeout=0.1)))[0] is code.DEADLINE_EXCEEDED
            server.ports[0].max_message_bytes = 1000
            assert (await status(to.unary_unary(ECHO)(LARGE)))[0] is code.RESOURCE_EXHAUSTED
            bomb = to.unary_unary(ECHO)(bytes(10**7), compression=grpc.Compression.Gzip)
            assert (await status(bomb))[0] in (code.INTERNAL, code.RESOURCE_EXHAUSTED)
            assert await to.unary_unary(ECHO)(b"still") == b"still"
            call = to.unary_unary(SLOW)(b"")
            await wait_until_async(lambda: server.calls_in_progress)
            call.cancel()
            await wait_until_async(lambda: not server.calls_in_progress)
            waiting = asyncio.ensure_future(status(to.unary_unary(SLOW)(b"")))
            await wait_until_async(lambda: server.calls_in_progress)
            await server.stop(0.05)
            assert (await waiting)[0] is code.UNAVAILABLE

    served(tmp_path, ask, tls=tls)
    assert "ZeroDivisionError" in caplog.text


@over_tls_too
def test_a_client_without_credit_is_cut_off(tmp_path: Path, tls: bool) -> None:
    """More than a window, and no end of frames that cost nothing: GOAWAY, and nothing of it is kept."""

    async def said(link: Link, data: bytes) -> bytes:
        reader, writer = await link.connect()
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + data)
        found = b""
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError):
                while part := await reader.read(2**16):
                    found += part
        writer.close()
        return found

    async def ask(server: RpcServer, link: Link) -> list[bytes]:
        server.flood_limits = FloodLimits(resets=200)
        head = frame(HEADERS, END_HEADERS, 1, encode_headers(headers_of(BIDI)))
        flood = frame(DATA, 0, 1, (10**6).to_bytes(5, "big") + bytes(10**6 - 5)) * 2
        tiny = frame(WINDOW, 0, 1, (1).to_bytes(4, "big")) * 20_000
        endless = frame(HEADERS, 0, 1, b"") + frame(9, 0, 1, bytes(10_000)) * 4
        slow = slow_call(1)
        rapid = b"".join(slow_call(number) + reset_of(number) for number in range(1, 2401, 2))
        dead = slow + reset_of(1)
        trailers = dead + frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_headers(((b"x", b"y"),))) * 10_001
        late = dead + frame(DATA, 0, 1, b"x") * 10_001
        wide = slow + frame(WINDOW, 0, 1, (2**30).to_bytes(4, "big"))
        wide += frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1))
        windows = slow + frame(WINDOW, 0, 0, (1).to_bytes(4, "big")) * 10_001
        conversations = (head + flood, head + tiny, endless, rapid, trailers, late, wide, windows)
        return [await said(link, data) for data in conversations]

    window, idle, block, reset = b"a stream's window", b"without effect", b"header block", b"begun and reset"
    reasons = (window, idle, block, reset, idle, idle, b"window out of bounds", idle)
    for found, reason in zip(served(tmp_path, ask, tls=tls), reasons, strict=True):
        assert frame(7, 0, 0, b"")[3:4] in found  # GOAWAY
        assert reason in found


@over_tls_too
def test_what_is_left_to_send_leaves_before_the_server(tmp_path: Path, tls: bool) -> None:
    async def ask(server: RpcServer, link: Link) -> None:
        async with raw_connection(link, call_of(1, LARGE[:50_000])) as (reader, writer):
            await read_until(reader, b"application/grpc")
            stopping = asyncio.create_task(server.stop(10))
            await asyncio.sleep(0.05)
            assert not stopping.done()
            writer.write(frame(WINDOW, 0, 1, (2**20).to_bytes(4, "big")))
            found = await read_until(reader, b"grpc-status")
            assert len(found) > 50_000
            await asyncio.wait_for(stopping, 50)

    served(tmp_path, ask, tls=tls)


@over_tls_too
def test_answers_that_nobody_reads_are_bounded(tmp_path: Path, tls: bool) -> None:
    """Above twice a message's bound they fail; with a deadline they are dropped when it has passed."""

    async def ask(server: RpcServer, link: Link) -> None:
        server.ports[0].max_message_bytes = 100_000
        asked = b"".join(call_of(2 * number + 1, LARGE[:50_000]) for number in range(20))
        async with raw_connection(link, asked) as (reader, _writer):
            await read_until(reader, b"lie unread")
            (connection,) = server.ports[0].connections
            assert isinstance(connection, http2.Http2Connection)
            assert 100_000 < connection.responses.unsent_bytes <= 200_000
            assert 2 <= server.calls_in_progress <= 4
        async with raw_connection(link, call_of(1, b"x", (b"grpc-timeout", b"50m"))) as (reader, _writer):
            await read_until(reader, frame(3, 0, 1, (8).to_bytes(4, "big")))
            await wait_until_async(lambda: not server.calls_in_progress)

    served(tmp_path, ask, tls=tls)


@over_tls_too
def test_a_request_that_does_not_come_is_waited_for_until_its_deadline(tmp_path: Path, tls: bool) -> None:
    async def ask(server: RpcServer, link: Link) -> None:
        head = encode_headers((*headers_of(ECHO), (b"grpc-timeout", b"50m")))
        async with raw_connection(link, frame(HEADERS, END_HEADERS, 1, head)) as (reader, _writer):
            assert b"\x0bgrpc-status\x014" in await read_until(reader, b"grpc-message")
            await wait_until_async(lambda: not server.calls_in_progress)

    served(tmp_path, ask, tls=tls)


def test_a_client_has_at_least_the_time_that_its_call_says_remains(tmp_path: Path) -> None:
    """gRPC's clients round timeouts up: a server that believed them would answer late, after the client has gone."""
    noted: list[tuple[float, float]] = []  # what remained when the server asked, and when that was

    async def ask(server: RpcServer, link: Link) -> None:
        async def note(_request: bytes, context: RpcCall) -> bytes:
            noted.append((context.time_remaining() or 0.0, time.monotonic()))
            return b""

        handlers = {"Note": grpc.unary_unary_rpc_method_handler(note)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Time", handlers),))
        async with link.channel() as to:
            call = to.unary_unary("/test.Time/Note")
            await call(b"")  # the connection is made
            for timeout_s in (0.2, 0.9991, 1.0011, 1.2341, 9.9911, 10.011, 12.3451, 60.0, 99.95, 123.4, 1234.5):
                for tries_left in reversed(range(5)):  # again if this machine stood still for as long
                    began_s = time.monotonic()
                    try:
                        await call(b"", timeout=timeout_s)
                        break
                    except grpc.aio.AioRpcError as error:
                        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and tries_left, timeout_s
                left_s, asked_s = noted[-1]
                assert 0.98 * timeout_s - (asked_s - began_s) < left_s < timeout_s + 0.05, timeout_s

    served(tmp_path, ask)


@over_tls_too
def test_a_byte_keeps_a_byte(tmp_path: Path, tls: bool) -> None:
    """Parts of a message that is not whole do not keep alive what they came in."""

    async def ask(_server: RpcServer, link: Link) -> int:
        start = frame(HEADERS, END_HEADERS, 3, encode_headers(headers_of(ECHO))) + frame(
            DATA, 0, 3, (2**20).to_bytes(5, "big")
        )
        async with raw_connection(link, slow_call(1) + reset_of(1) + start) as (_reader, writer):
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(200):
                writer.write(frame(DATA, 0, 3, b"x") + frame(DATA, 0, 1, bytes(60_000)))
                await writer.drain()
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            kept = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
        return kept

    assert served(tmp_path, ask, tls=tls) < 3 * 2**20  # what came: 12 MB


def _conversations() -> Iterator[bytes]:
    """What right clients send: both protocols, one call or several."""
    body = b"\0" + (5).to_bytes(4, "big") + b"hello"
    for path in (ECHO, BIDI, SLOW):
        block = encode_headers(headers_of(path))
        yield (
            PREFACE
            + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**16))
            + b"".join(
                frame(HEADERS, END_HEADERS, number, block) + frame(DATA, END_STREAM, number, body)
                for number in (1, 3, 5)
            )
        )
    head = unix_frames.HEAD.pack(1.0, len(ECHO), 2) + ECHO.encode() + b"{}" + b"hello"
    calls = (
        unix_frames.FRAME.pack(len(head) + unix_frames.FRAME.size - 4, number, unix_frames.CALL) + head
        for number in range(3)
    )
    yield unix_frames.GREETING + b"".join(calls)


def _mutated(draw: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found)) if draw.random() < 0.7 else min(len(found) - 1, draw.randrange(17, 60))
        kind = draw.random()
        if kind < 0.5:
            found[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind < 0.7:
            del found[at : at + draw.randint(1, 20)]
        elif kind < 0.9:
            found[at:at] = draw.randbytes(draw.randint(1, 20))
        else:
            found += found[at : at + 50]
        found = found or bytearray(b"P")
    return bytes(found)


@pytest.mark.slow
@over_tls_too
@pytest.mark.parametrize("count", [FUZZ, pytest.param(200_000, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])])
def test_mutated_bytes(tmp_path: Path, tls: bool, count: int) -> None:
    """Whatever comes, in pieces too: the connection ends or goes on, nothing is left, others are served."""

    async def ask(server: RpcServer, link: Link) -> None:
        draw, right = random.Random(7), list(_conversations())
        for number in range(count):
            reader, writer = await link.connect()
            data = _mutated(draw, right[number % len(right)])
            cut = draw.randrange(len(data) + 1)
            half_close = number % 3 > 0 and not tls  # asyncio's TLS cannot half-close
            await send_in_two(reader, writer, data, cut, half_close=half_close)
            if number % 50 == 49:
                await assert_echoes(link)
        await wait_until_async(lambda: not server.calls_in_progress and not server.open_connections)

    served(tmp_path, ask, 60 + count / 30, tls=tls)


@over_tls_too
def test_the_policy_is_asked_before_a_request_is_read(tmp_path: Path, tls: bool) -> None:
    """Refused by the headers alone, for all methods: no body is waited for."""

    async def ask(_server: RpcServer, link: Link) -> None:
        reader, writer = await link.connect()
        head = encode_headers((*headers_of(ECHO), (b"jellybean-protocol", b"99.0")))
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, head))
        found = b""
        async with asyncio.timeout(5):
            while b"grpc-message" not in found:
                part = await reader.read(2**16)
                assert part
                found += part
        assert b"\x0bgrpc-status\x019" in found  # FAILED_PRECONDITION
        writer.close()

    served(tmp_path, ask, tls=tls)
