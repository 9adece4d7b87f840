"""The fast lane: unary calls in frames of our own, for this user's processes on the same host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from jellybean_agent import MAX_MESSAGE_BYTES, RpcServer, StatusError, UnixSocketClient
from jellybean_agent.rpc import http2
from jellybean_agent.rpc import unix_socket_frames as frames
from jellybean_agent.rpc.unix_socket import UnixSocketConnection
from tests.rpc_server import BIDI, ECHO, LARGE, SLOW, Link, served


def connected(path: str, metadata: Mapping[str, str]) -> UnixSocketClient:
    client = UnixSocketClient(path, metadata)
    client.connect()
    return client


def test_the_lane(tmp_path: Path) -> None:
    async def ask(_server: RpcServer, link: Link) -> None:
        path = link.path
        client = await asyncio.to_thread(connected, path, {})

        async def call(method: str, message: bytes, timeout_s: float = 20.0) -> bytes | grpc.StatusCode:
            try:
                return await asyncio.to_thread(client.call, method, message, timeout_s)
            except StatusError as error:
                return error.status

        assert await call(ECHO, b"x") == b"x"
        assert await call(ECHO, LARGE) == LARGE
        assert await asyncio.gather(*(call(ECHO, bytes((n,)) * 70_000) for n in range(20))) == [
            bytes((n,)) * 70_000 for n in range(20)
        ]
        assert await call(SLOW, b"", 0.1) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call(BIDI, b"") is await call("/no.Such/Method", b"") is grpc.StatusCode.UNIMPLEMENTED
        assert await call(ECHO, bytes(MAX_MESSAGE_BYTES + 2**15)) is grpc.StatusCode.UNAVAILABLE  # it is cut off
        assert await call(ECHO, b"on") == b"on"
        client.close()

    served(tmp_path, ask)


def test_a_lane_that_breaks_ends_and_nothing_else(tmp_path: Path) -> None:
    """No frame, behind the greeting at once and above a buffer's size; and metadata that no status can repeat."""

    def said(path: str, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(10)
            to.connect(path)
            with contextlib.suppress(OSError):
                to.sendall(frames.GREETING + data)
            found = b""
            with contextlib.suppress(ConnectionError):
                while part := to.recv(2**16):
                    found += part
                    if len(found) > len(frames.GREETING) + frames.FRAME.size:
                        break
            return found

    async def ask(_server: RpcServer, link: Link) -> None:
        path, name = link.path, ECHO.encode()
        metadata = json.dumps({"jellybean-protocol": "\ud800"}).encode()
        head = frames.HEAD.pack(5.0, len(name), len(metadata)) + name + metadata
        odd = frames.FRAME.pack(len(head) + frames.FRAME.size - 4, 1, frames.CALL) + head
        assert await asyncio.to_thread(said, path, bytes(150_000)) == frames.GREETING
        assert (await asyncio.to_thread(said, path, odd))[len(frames.GREETING) :][8] == frames.FAILED
        async with link.channel() as to:
            assert await to.unary_unary(ECHO)(b"on") == b"on"

    served(tmp_path, ask)


def test_calls_of_a_lane_share_what_their_heads_say_but_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    was = UnixSocketConnection._read_headers
    monkeypatch.setattr(
        UnixSocketConnection, "_read_headers", lambda own, told, size: (read.append(told), was(own, told, size))[1]
    )

    async def ask(_server: RpcServer, link: Link) -> None:
        client = await asyncio.to_thread(connected, link.path, {"a": "b"})
        for timeout_s in (5.0, 6.0, 7.0):
            assert await asyncio.to_thread(client.call, ECHO, b"x", timeout_s) == b"x"
        assert len(read) == 1
        with pytest.raises(StatusError, match=r"no answer|time is up"):
            await asyncio.wait_for(asyncio.to_thread(client.call, SLOW, b"x", 0.0), 5)
        client.close()

    served(tmp_path, ask)


def test_a_lane_client_survives_that_its_server_starts_again(tmp_path: Path) -> None:
    client: list[UnixSocketClient] = []

    async def first(_server: RpcServer, link: Link) -> None:
        client.append(await asyncio.to_thread(connected, link.path, {}))
        await asyncio.gather(*(asyncio.to_thread(client[0].call, ECHO, b"x", 5.0) for _ in range(4)))

    async def second(_server: RpcServer, _link: Link) -> None:
        assert [await asyncio.to_thread(client[0].call, ECHO, b"y", 5.0) for _ in range(5)] == [b"y"] * 5
        client[0].close()

    served(tmp_path, first)
    served(tmp_path, second)


def test_another_user_gets_no_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(http2, "peer_uid", lambda _: own + 1)

    async def ask(_server: RpcServer, link: Link) -> None:
        reader, writer = await asyncio.open_unix_connection(link.path)
        writer.write(frames.GREETING)
        assert await reader.read() == b""
        writer.close()

    served(tmp_path, ask)
