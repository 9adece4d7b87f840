"""A connection of the Unix-socket protocol, fed with frames in memory: what it answers, refuses and lets go of."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from jellybean_agent import CALL, FRAME, GREETING, HEAD, tls_auth_context
from jellybean_agent.admission.turns import TURN_S, PeerTurns
from jellybean_agent.rpc.http2 import Http2Connection
from jellybean_agent.rpc.unix_socket import UnixSocketConnection
from jellybean_agent.rpc.unix_socket_frames import CANCEL, END, FAILED, MESSAGE, OPEN, REPLY, STREAMS_GREETING
from tests.support.http2_client import BIDI, BREAK, ECHO, SLOW, SPLIT, CallServer, settle
from tests.support.memory_connection import MemoryTransport
from tests.support.simulated_time import run_in_simulated_time

Answer = tuple[int, int, bytes]  # number of the call, kind, what follows
LARGE = random.Random(1).randbytes(200_000)


@pytest.fixture
def sockets() -> Iterator[socket.socket]:
    """One end of a pair of Unix sockets, for what the kernel says of its peer."""
    one, other = socket.socketpair()
    with one, other:
        yield one


def framed(number: int, kind: int, data: bytes = b"") -> bytes:
    return FRAME.pack(len(data) + FRAME.size - 4, number, kind) + data


def head(path: str = ECHO, left_s: float = 0.0, metadata: bytes = b"") -> bytes:
    return HEAD.pack(left_s, len(path), len(metadata)) + path.encode() + metadata


def called(number: int, message: bytes, path: str = ECHO, left_s: float = 0.0, metadata: bytes = b"") -> bytes:
    return framed(number, CALL, head(path, left_s, metadata) + message)


def failed(number: int, status: grpc.StatusCode, reason: str) -> Answer:
    return number, FAILED, bytes([status.value[0]]) + reason.encode()


class Receiver:
    """A raw stream's receiver, which sends back what it gets; `many`: 6 MiB instead."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def receive(self, message: bytes) -> None:
        if message == b"fail":
            raise ZeroDivisionError
        if message != b"many":
            self.call.send_response(message)
        else:
            asyncio.get_running_loop().create_task(self._send_many())

    async def _send_many(self) -> None:
        for _ in range(6):
            self.call.send_response(bytes(2**20))
            await settle(2)

    def end_of_requests(self) -> None:
        self.call.end(grpc.StatusCode.OK)


class Client:
    """A client on a Unix socket, or over TLS if `is_remote`, whose greeting has been answered."""

    def __init__(self, server: CallServer, unix: socket.socket, greeting: bytes, *, is_remote: bool = False) -> None:
        server.server.add_raw_stream(BIDI, Receiver)
        if is_remote:
            auth = tls_auth_context(["spiffe://x"])
            self.transport = MemoryTransport(UnixSocketConnection(server.port, b"", auth))
            self.transport.connect()
            return
        self.transport = MemoryTransport(Http2Connection(server.port), unix)
        self.transport.connect()
        self.transport.receive(greeting[:3])
        self.transport.receive(greeting[3:])
        assert self.transport.take() == greeting

    async def send(self, data: bytes, pieces: int = 0) -> list[Answer]:
        """Send bytes; returns what the server answers."""
        self.transport.receive(data, pieces)
        return await self.answers()

    async def answers(self) -> list[Answer]:
        await settle()
        data, found, at = self.transport.take(), [], 0
        while at < len(data):
            size, number, kind = FRAME.unpack_from(data, at)
            found.append((number, kind, data[at + FRAME.size : at + 4 + size]))
            at += 4 + size
        return found


@pytest.mark.parametrize("pieces", [0, 1, 10, 50_000])
def test_calls_and_streams_of_one_connection(sockets: socket.socket, pieces: int) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, STREAMS_GREETING)
        data = called(1, b"one") + called(2, b"", BREAK) + framed(3, OPEN, head(BIDI)) + framed(3, MESSAGE, b"three")
        answers = await client.send(data, pieces)
        assert sorted(answers) == [
            (1, REPLY, b"one"),
            failed(2, grpc.StatusCode.UNKNOWN, "Unexpected ZeroDivisionError"),
            (3, MESSAGE, b"three"),
        ]
        assert server.server.calls_in_progress == 1
        assert await client.send(framed(3, MESSAGE, b"")) == [(3, MESSAGE, b"")]
        assert await client.send(framed(3, END) + framed(3, MESSAGE, b"late") + framed(9, END)) == [(3, END, b"")]
        assert server.server.calls_in_progress == 0
        if pieces in (0, 50_000):
            large = (
                called(4, LARGE) + framed(5, OPEN, head(BIDI)) + framed(5, MESSAGE, LARGE) + framed(5, MESSAGE, b"x")
            )
            answers = await client.send(large + called(6, b"six"), pieces)
            assert [found for found in answers if found[0] == 5] == [(5, MESSAGE, LARGE), (5, MESSAGE, b"x")]
            assert [found for found in answers if found[0] != 5] == [(4, REPLY, LARGE), (6, REPLY, b"six")]

    run_in_simulated_time(run)


BROKEN = [
    ("short frame", FRAME.pack(FRAME.size - 5, 1, CALL)),
    ("large frame", FRAME.pack(1000 + 2**14 + 1, 1, CALL)),
    ("short head", framed(1, CALL, bytes(HEAD.size - 1))),
    ("path cut", framed(1, CALL, head()[:-1])),
    ("metadata cut", framed(1, CALL, head(metadata=b"{}")[:-1])),
    ("large head", framed(1, CALL, HEAD.pack(0.0, 2**14, 0) + bytes(2**14))),
    ("negative time", called(1, b"", left_s=-1.0)),
    ("endless time", called(1, b"", left_s=math.inf)),
    ("no time", called(1, b"", left_s=math.nan)),
    ("number twice", called(1, b"", SLOW) + called(1, b"")),
    ("no metadata", called(1, b"", metadata=b"{")),
    ("metadata list", called(1, b"", metadata=b"[]")),
    ("metadata of numbers", called(1, b"", metadata=b'{"a": 1}')),
    ("deep metadata", called(1, b"", metadata=b"[" * 9000)),
    ("message for a call", called(1, b"", SLOW) + framed(1, MESSAGE, b"x")),
    ("unknown kind", framed(1, 7)),
    ("answer", framed(1, REPLY)),
    ("too many", b"".join(called(number, b"", SLOW) for number in range(1, 6))),
]


@pytest.mark.parametrize("data", [case[1] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_client_that_breaks_the_protocol_loses_its_connection(sockets: socket.socket, data: bytes) -> None:
    async def run() -> None:
        server = CallServer(message_bytes=1000, streams=4)
        client = Client(server, sockets, STREAMS_GREETING)
        answers = await client.send(data)
        assert all(kind == FAILED and found[0] == grpc.StatusCode.UNAVAILABLE.value[0] for _, kind, found in answers)
        assert client.transport.is_closing()
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 0)

    run_in_simulated_time(run)


@pytest.mark.parametrize("kind", [OPEN, MESSAGE, END])
def test_streams_need_the_second_form_of_the_greeting(sockets: socket.socket, kind: int) -> None:
    async def run() -> None:
        client = Client(CallServer(), sockets, GREETING)
        assert await client.send(called(1, b"x")) == [(1, REPLY, b"x")]
        assert await client.send(framed(3, kind, head(BIDI))) == []
        assert client.transport.is_closing()

    run_in_simulated_time(run)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (
            called(1, b"", "/no.Such/Method"),
            failed(1, grpc.StatusCode.UNIMPLEMENTED, "no unary method /no.Such/Method"),
        ),
        (called(1, b"", BIDI), failed(1, grpc.StatusCode.UNIMPLEMENTED, f"no unary method {BIDI}")),
        (called(1, b"", SPLIT), failed(1, grpc.StatusCode.UNIMPLEMENTED, f"no unary method {SPLIT}")),
        (framed(1, OPEN, head(ECHO)), failed(1, grpc.StatusCode.UNIMPLEMENTED, f"no such method {ECHO}")),
        (framed(1, OPEN, head("/no/M")), failed(1, grpc.StatusCode.UNIMPLEMENTED, "no such method /no/M")),
    ],
)
def test_methods_that_are_not_served_this_way(sockets: socket.socket, data: bytes, answer: Answer) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, STREAMS_GREETING)
        assert await client.send(data) == [answer]
        assert await client.send(called(2, b"on")) == [(2, REPLY, b"on")]
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_a_call_ends_at_its_deadline_or_when_it_is_cancelled(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, GREETING)
        await client.send(called(1, b"", SLOW, 5.0) + called(2, b"", SLOW) + called(3, b"", ECHO, 5.0))
        assert 4.9 < server.contexts[0].time_remaining() <= 5.0
        assert server.contexts[1].time_remaining() is None
        await asyncio.sleep(4.999)
        assert await client.answers() == []
        await asyncio.sleep(0.002)
        assert await client.answers() == [failed(1, grpc.StatusCode.DEADLINE_EXCEEDED, "the call's time is up")]
        assert await client.send(framed(2, CANCEL) + framed(7, CANCEL)) == []
        assert server.cancelled == [1, 2]
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_the_calls_of_a_lost_connection_are_cancelled(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, STREAMS_GREETING)
        await client.send(called(1, b"", SLOW) + framed(2, OPEN, head(BIDI)))
        over: list[int] = []
        for context in server.contexts:
            context.add_done_callback(lambda call: over.append(call.number))
        client.transport.lose()
        await settle()
        assert (server.cancelled, over) == ([1], [1])
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 0)

    run_in_simulated_time(run)


def test_metadata_and_deadline_of_calls_with_the_same_head(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, GREETING)
        metadata = json.dumps({"a": "b", "c": "d"}).encode()
        for number, left_s in enumerate((0.0, 3.0, 0.0, 9.0)):
            await client.send(called(number, b"x", ECHO, left_s, metadata))
        for number in range(70):  # more heads than are kept
            await client.send(called(number, b"x", ECHO, 0.0, json.dumps({"number": str(number)}).encode()))
        assert [context.invocation_metadata() for context in server.contexts[:4]] == [(("a", "b"), ("c", "d"))] * 4
        assert [context.time_remaining() for context in server.contexts[:4:2]] == [None, None]
        assert 2.9 < server.contexts[1].time_remaining() <= 3.0
        assert 8.9 < server.contexts[3].time_remaining() <= 9.0
        assert server.contexts[-1].invocation_metadata() == (("number", "69"),)
        assert server.contexts[0].peer() == "unix:"

    run_in_simulated_time(run)


def test_a_connection_that_drains_refuses_and_one_that_closes_ends_its_calls(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, STREAMS_GREETING)
        await client.send(called(1, b"", SLOW))
        server.server.retire()
        refused = failed(2, grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        assert await client.send(called(2, b"x")) == [refused]
        assert server.server.calls_in_progress == 1
        connection: Any = client.transport.protocol
        connection.close("the end")
        assert await client.answers() == [failed(1, grpc.StatusCode.UNAVAILABLE, "the end")]
        connection.buffer_updated(0)
        assert client.transport.is_closing()
        assert server.server.open_connections == 0

    run_in_simulated_time(run)


def test_calls_above_the_limit_are_refused(sockets: socket.socket) -> None:
    async def run() -> None:
        client = Client(CallServer(calls=1), sockets, GREETING)
        refused = failed(2, grpc.StatusCode.RESOURCE_EXHAUSTED, "1 calls are in progress, which is the limit")
        assert await client.send(called(1, b"", SLOW) + called(2, b"x")) == [refused]
        assert await client.send(framed(1, CANCEL) + called(3, b"x")) == [(3, REPLY, b"x")]

    run_in_simulated_time(run)


def test_a_stream_that_fails_unexpectedly_ends_alone(sockets: socket.socket) -> None:
    async def run() -> None:
        client = Client(CallServer(), sockets, STREAMS_GREETING)
        await client.send(framed(1, OPEN, head(BIDI)) + framed(2, OPEN, head(BIDI)))
        assert await client.send(framed(1, MESSAGE, b"fail") + framed(2, MESSAGE, b"on")) == [
            failed(1, grpc.StatusCode.UNKNOWN, "Unexpected ZeroDivisionError"),
            (2, MESSAGE, b"on"),
        ]

    run_in_simulated_time(run)


def test_a_client_that_does_not_read_is_not_read_and_a_stream_that_is_not_read_is_cut(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        client = Client(server, sockets, STREAMS_GREETING)
        client.transport.is_blocked = True
        large = bytes(2**20)
        await client.send(called(9, large[: 2**19]))
        assert client.transport.is_reading
        await client.send(called(1, large))
        assert not client.transport.is_reading
        client.transport.unblock()
        assert client.transport.is_reading
        assert [kind for _, kind, _ in await client.answers()] == [REPLY, REPLY]
        await client.send(framed(2, OPEN, head(BIDI)))
        client.transport.is_blocked = True
        await client.send(framed(2, MESSAGE, b"many"))
        await settle(20)
        assert client.transport.is_aborted
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_a_call_that_comes_with_the_greeting_is_answered(sockets: socket.socket) -> None:
    async def run() -> None:
        transport = MemoryTransport(Http2Connection(CallServer().port), sockets)
        transport.connect()
        transport.receive(GREETING + called(1, b"x") + called(2, b"y")[:9])
        transport.receive(called(2, b"y")[9:])
        await settle()
        assert transport.take() == GREETING + framed(1, REPLY, b"x") + framed(2, REPLY, b"y")

    run_in_simulated_time(run)


def test_answers_to_one_read_leave_together_and_a_single_one_at_once(sockets: socket.socket) -> None:
    async def run() -> None:
        server = CallServer()
        server.server.add_raw(ECHO, lambda call, data: call.reply(bytes(data)) is None)
        client = Client(server, sockets, GREETING)
        await client.send(called(1, b"x"))
        client.transport.writes = 0
        assert len(await client.send(b"".join(called(number, b"x") for number in range(5)))) == 5
        assert client.transport.writes == 1

    run_in_simulated_time(run)


def test_over_tls_only_streams_are_served_and_only_they_take_memory(sockets: socket.socket) -> None:
    async def run() -> None:
        large = framed(1, MESSAGE, LARGE)
        for data, is_served in (
            (framed(1, OPEN, head(BIDI)) + large, True),
            (large, False),
            (called(1, b"x"), False),
            (framed(1, OPEN, head(BIDI)) + framed(2, MESSAGE, LARGE), False),
        ):
            client = Client(CallServer(), sockets, b"", is_remote=True)
            answers = await client.send(data)
            assert client.transport.is_closing() != is_served
            assert (answers == [(1, MESSAGE, LARGE)]) == is_served

    run_in_simulated_time(run)


def test_a_process_of_another_user_is_not_served(sockets: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    async def run() -> None:
        server = CallServer()
        transport = MemoryTransport(Http2Connection(server.port), sockets)
        transport.connect()
        transport.receive(GREETING + called(1, b"x"))
        await settle()
        assert transport.take() == b""
        assert transport.is_closing()
        assert server.server.open_connections == 0

    run_in_simulated_time(run)


def test_lengths_of_the_protocol_are_those_of_its_first_version() -> None:
    assert (FRAME.size, HEAD.size) == (struct.calcsize("<IIB"), struct.calcsize("<dHH"))
    assert (CALL, CANCEL, REPLY, FAILED, OPEN, MESSAGE, END) == (0, 1, 2, 3, 4, 5, 6)
    assert (GREETING, STREAMS_GREETING) == (b"JELLYBEAN LANE 1\n", b"JELLYBEAN LANE 2\n")


def test_a_flood_of_frames_from_elsewhere_takes_turns_with_others(sockets: socket.socket) -> None:
    """As of gRPC: a client may choose the protocol of streams, whose small frames cost it nothing."""

    async def run() -> None:
        ticks = itertools.count()
        server = CallServer(clock=lambda: next(ticks) * TURN_S / 20)
        flood, other = (Client(server, sockets, b"", is_remote=True) for _ in range(2))
        flood.transport.holds_back = True
        other.transport.protocol._turn = PeerTurns(lambda: 0.0).of("other")  # type: ignore[attr-defined]
        count = 2000
        flood.transport.receive(b"".join(framed(number, OPEN, head("/a/b")) for number in range(1, count + 1)))
        assert not flood.transport.is_reading
        assert await other.send(framed(1, OPEN, head(BIDI)) + framed(1, MESSAGE, b"x")) == [(1, MESSAGE, b"x")]
        answers = await flood.answers()
        assert 0 < len(answers) < count
        while len(answers) < count:
            answers += await flood.answers()
        assert [number for number, _, _ in answers] == [*range(1, count + 1)]
        assert flood.transport.is_reading

    run_in_simulated_time(run)
