"""The client of one stream, whose server a test writes: greeting, frames, backpressure, and each kind of end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest

from jellybean_agent import FRAME, GREETING, HEAD, AgentError, StatusError, UnixSocketRpcUnsupportedError
from jellybean_agent.errors import TransientError
from jellybean_agent.rpc.unix_socket_frames import CANCEL, END, FAILED, MESSAGE, OPEN, STREAMS_GREETING
from jellybean_agent.rpc.unix_socket_stream import UNSENT_BYTES, UnixSocketStream
from tests.support.http2_client import settle
from tests.support.memory_connection import MemoryTransport
from tests.support.simulated_time import run_in_simulated_time

PATH, METHOD = "/run/x", "/a.B/C"


def framed(kind: int, data: bytes = b"", number: int = 1) -> bytes:
    return FRAME.pack(len(data) + FRAME.size - 4, number, kind) + data


@pytest.fixture
def sockets() -> Iterator[socket.socket]:
    one, other = socket.socketpair()
    with one, other:
        yield one


class Client:
    """A stream, its connection in memory, and what it has received."""

    def __init__(self, unix: socket.socket) -> None:
        self.got: list[bytes] = []
        self.stream = UnixSocketStream(PATH, METHOD, {"a": "b"}.items(), self.got.append)
        self.transport = MemoryTransport(self.stream, unix)
        self.transport.connect()

    def greeted(self) -> Client:
        """The server speaks the protocol, so the call is open."""
        assert self.transport.take() == STREAMS_GREETING
        self.transport.receive(STREAMS_GREETING)
        head = HEAD.pack(0.0, len(METHOD), len(b'{"a": "b"}')) + METHOD.encode() + b'{"a": "b"}'
        assert self.transport.take() == framed(OPEN, head)
        return self

    def error(self) -> BaseException | None:
        assert self.stream.ended.done()
        return self.stream.ended.exception()


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()
        await settle()

    run_in_simulated_time(run)


def test_messages_pass_both_ways_until_the_server_ends(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets)
        assert not client.stream.may_send
        client.greeted()
        assert client.stream.may_send
        client.stream.send(b"one")
        client.stream.send(b"tw", b"o")
        await settle()
        assert client.transport.take() == framed(MESSAGE, b"one") + framed(MESSAGE, b"two")
        data = framed(MESSAGE, b"first") + framed(MESSAGE) + framed(MESSAGE, b"x" * 300)
        for octet in data:
            client.transport.receive(bytes((octet,)))
        assert client.got == [b"first", b"", b"x" * 300]
        client.stream.half_close()
        client.stream.half_close()
        await settle()
        assert client.transport.take() == framed(END)
        assert not client.stream.may_send
        client.transport.receive(framed(END) + framed(MESSAGE, b"late"))
        assert client.error() is None
        assert client.got[3:] == []
        assert client.transport.is_closing() and not client.transport.is_aborted

    in_loop(test)


def test_the_greeting_may_come_in_parts(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets)
        for octet in STREAMS_GREETING[:-1]:
            client.transport.receive(bytes((octet,)))
        assert not client.stream.may_send
        client.transport.receive(STREAMS_GREETING[-1:] + framed(MESSAGE, b"at once"))
        assert client.stream.may_send
        assert client.got == [b"at once"]

    in_loop(test)


@pytest.mark.parametrize("greeting", [GREETING, b"HTTP/1.1 400", STREAMS_GREETING[:-1] + b"x"])
def test_a_server_without_the_protocol(sockets: socket.socket, greeting: bytes) -> None:
    async def test() -> None:
        client = Client(sockets)
        client.transport.receive(greeting)
        assert isinstance(client.error(), UnixSocketRpcUnsupportedError)
        assert client.transport.is_aborted
        other = Client(sockets)
        other.transport.lose()
        assert isinstance(other.error(), UnixSocketRpcUnsupportedError)

    in_loop(test)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (framed(FAILED, b"\x08too many"), StatusError, "too many"),
        (framed(FAILED, b"\x0cno such method"), UnixSocketRpcUnsupportedError, "no such method"),
        (framed(FAILED), TransientError, "unexpected frame of kind 3, 0 bytes"),
        (framed(OPEN), TransientError, "unexpected frame of kind 4, 0 bytes"),
        (framed(MESSAGE, b"", 2), TransientError, "unexpected frame of kind 5, 5 bytes, call 2"),
        (FRAME.pack(4, 1, MESSAGE), TransientError, "unexpected frame of kind 5, 4 bytes, call 1"),
        (FRAME.pack(2**20 + 1, 1, MESSAGE), TransientError, "unexpected frame of kind 5, 1048577 bytes, call 1"),
        (None, TransientError, "it closed the connection"),
    ],
)
def test_the_ways_in_which_a_server_ends_a_stream(
    sockets: socket.socket, data: bytes | None, kind: type[Exception], reason: str
) -> None:
    async def test() -> None:
        client = Client(sockets).greeted()
        if data is None:
            client.transport.lose()
        else:
            client.transport.receive(data)
            assert client.transport.is_aborted
        error = client.error()
        assert (type(error), str(error)) == (kind, reason)
        if isinstance(error, StatusError):
            assert error.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not client.stream.may_send
        with pytest.raises((AgentError, UnixSocketRpcUnsupportedError), match=reason):
            await client.stream.writable()

    in_loop(test)


def test_a_lost_connection_says_why(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets).greeted()
        client.transport.lose(ConnectionResetError(104, "Connection reset by peer"))
        assert str(client.error()) == "Connection reset by peer"

    in_loop(test)


def test_a_stream_that_is_cancelled_tells_the_server(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets).greeted()
        client.stream.send(b"x")
        client.stream.cancel()
        assert client.transport.take() == framed(MESSAGE, b"x") + framed(CANCEL)
        assert str(client.error()) == "it was broken off"
        client.stream.cancel()
        assert client.transport.take() == b""
        early = Client(sockets)
        early.stream.cancel()
        assert early.transport.take() == STREAMS_GREETING
        assert early.transport.is_aborted

    in_loop(test)


def test_a_stream_that_is_half_closed_before_it_is_open(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets)
        client.stream.half_close()
        client.transport.take()
        client.transport.receive(STREAMS_GREETING)
        assert client.transport.take().endswith(framed(END))

    in_loop(test)


def test_a_sender_waits_while_the_connection_is_full(sockets: socket.socket) -> None:
    async def test() -> None:
        client = Client(sockets)
        waiting = asyncio.create_task(client.stream.writable())
        await settle()
        assert not waiting.done()
        client.greeted()
        await settle()
        assert waiting.done()
        client.transport.is_blocked = True
        client.stream.send(bytes(UNSENT_BYTES))
        await settle()
        assert not client.stream.may_send
        waiting = asyncio.create_task(client.stream.writable())
        await settle()
        assert not waiting.done()
        client.transport.unblock()
        await settle()
        assert waiting.done() and client.stream.may_send
        client.stream.half_close()
        waiting = asyncio.create_task(client.stream.writable())
        await settle()
        client.transport.receive(framed(END))
        await settle()
        with pytest.raises(TransientError, match="it closed the stream"):
            await waiting

    in_loop(test)


def test_a_server_of_another_user(sockets: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    async def test() -> None:
        client = Client(sockets)
        assert str(client.error()) == "/run/x is served by another user"
        assert client.transport.take() == b""

    in_loop(test)


def test_a_socket_that_is_not_there_or_takes_no_connection(tmp_path: Any) -> None:
    async def test() -> None:
        absent = UnixSocketStream(f"{tmp_path}/none", METHOD, (), print)
        absent.start()
        await asyncio.wait({absent.ended})
        assert str(absent.ended.exception()) == (f"cannot connect to {tmp_path}/none: there is no such file or folder")

        class Slow(UnixSocketStream):
            async def _open_connection(self) -> None:
                await asyncio.sleep(3600.0)

        slow, loop = Slow("/run/slow", METHOD, (), print), asyncio.get_running_loop()
        began_s = loop.time()
        slow.start()
        await asyncio.wait({slow.ended})
        assert str(slow.ended.exception()) == "/run/slow takes no connection within 5 s"
        assert 4.9 < loop.time() - began_s < 5.1
        cancelled = Slow("/run/slow", METHOD, (), print)
        cancelled.start()
        await settle()
        cancelled.cancel()
        await settle()
        assert str(cancelled.ended.exception()) == "it was broken off"
        assert len(asyncio.all_tasks()) == 1, "it does not go on connecting"

    in_loop(test)
