"""TLS of our own gRPC server: handshakes that fail, that do not end, and connections that end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from jellybean_agent import DELIVER_METHOD, Identity, Inboxes, Role, RpcServer, agent_service_handler
from jellybean_agent.rpc import unix_socket_frames as frames
from jellybean_agent.rpc.frames import PREFACE, SETTINGS, frame
from jellybean_agent.rpc.http2 import Http2Connection
from jellybean_agent.rpc.tls import listener as tls_listener
from jellybean_agent.rpc.tls.listener import HTTP2_ALPN, TlsLimits
from jellybean_agent.security.identity import SENDER_KEY, identities
from jellybean_agent.transport import channels
from tests.rpc_server import (
    BIDI,
    ECHO,
    LARGE,
    SLOW,
    Link,
    assert_echoes,
    call_of,
    read_until,
    send_in_two,
    served,
    status,
)

FUZZ = int(os.environ.get("RPC_FUZZ", "300"))
SERVER_NAME = Identity("w", Role.GATEWAY).tls_name


def limited(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Servers that are made from now on have these limits."""
    monkeypatch.setattr(channels, "TlsLimits", lambda **given: replace(TlsLimits(**given), **limits))


async def connected(link: Link, context: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = link.address.split(":")
    name = None if context is None else SERVER_NAME
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)


async def handshake(
    context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """TLS over a plain connection, after the server's part of the handshake, and what it reads from and writes to.

    The client's last records may still be in the latter.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=SERVER_NAME)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(2**16))
        else:
            return tls, incoming, outgoing


async def received(link: Link, context: ssl.SSLContext | None, data: bytes = b"") -> bytes:
    """What the server sends until it closes the connection."""
    reader, writer = await connected(link, context)
    writer.write(data)
    async with asyncio.timeout(20):
        found = await reader.read()
    writer.close()
    return found


def context_of(link: Link, *alpn: str) -> ssl.SSLContext:
    """Of a client with the right certificate, which accepts TLS 1.2 too."""
    context = link.tls_context(*alpn)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def handshakes_of(server: Any) -> dict[Any, None]:
    """The unfinished handshakes of a server."""
    handshakes: dict[Any, None] = server._sockets[0][2]._handshakes
    return handshakes


def test_a_client_is_known_by_its_certificate_in_both_versions(tmp_path: Path) -> None:
    contexts: list[Any] = []

    async def who(request: bytes, context: Any) -> bytes:
        contexts.append(context)
        return request

    async def ask(server: RpcServer, link: Link) -> None:
        found: Any = server
        found._generic[0]._method_handlers[ECHO] = grpc.unary_unary_rpc_method_handler(who)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = context_of(link, HTTP2_ALPN)
            context.maximum_version = version
            reader, writer = await connected(link, context)
            writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + call_of(1, b"x"))
            await read_until(reader, b"grpc-status")
            tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
            assert tls.version() == {1: "TLSv1.2", 2: "TLSv1.3"}[version - ssl.TLSVersion.TLSv1_1]
            assert not (tls.session is not None and tls.session.has_ticket)
            assert "GCM" in str(tls.cipher()) or "CHACHA20" in str(tls.cipher())
            writer.close()
        async with link.channel() as to:  # and as grpc's own client connects
            assert await to.unary_unary(ECHO)(b"y") == b"y"

    served(tmp_path, ask, tls=True)
    assert len(contexts) == 3
    for context in contexts:
        assert identities(context.auth_context()) == [Identity("w", Role.CLIENT, "alice")]
        assert context.auth_context()["transport_security_type"] == (b"ssl",)
        assert context.peer().startswith("ipv4:127.0.0.1:")


def test_what_is_no_right_handshake_is_refused_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jellybean.tls")

    async def ask(server: RpcServer, link: Link) -> None:
        assert await received(link, None, PREFACE + frame(SETTINGS, 0, 0, b"")) == b""  # plaintext
        for alpn in ((), ("http/1.1",)):
            assert await received(link, context_of(link, *alpn), PREFACE) == b""
        bare = ssl.create_default_context(cafile=str(tmp_path / "client" / "ca.crt"))
        bare.set_alpn_protocols([HTTP2_ALPN])
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate required"):  # the alert says so
            await received(link, bare, PREFACE)
        old = context_of(link, HTTP2_ALPN)
        old.set_ciphers("AES128-SHA:@SECLEVEL=0")  # no forward secrecy, prohibited by HTTP/2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake failure"):
            await received(link, old)
        async with grpc.aio.insecure_channel(link.address) as to:
            assert (await status(to.unary_unary(ECHO)(b"", timeout=5)))[0] is grpc.StatusCode.UNAVAILABLE
        assert not server.open_connections
        async with link.channel() as to:
            assert await to.unary_unary(ECHO)(b"on") == b"on"

    served(tmp_path, ask, tls=True)
    reasons = [text.removeprefix("refused at the handshake: ").rpartition(" (")[0] for text in caplog.messages]
    no_alpn = "it offers none of the protocols jellybean-lane/2, h2 (ALPN)"
    assert reasons[:3] == ["it does not speak TLS", no_alpn, no_alpn]
    assert reasons[3:5] == ["peer did not return a certificate", "no shared cipher"]


def test_an_expired_certificate_is_refused_even_if_a_session_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS 1.2 can resume a session, for which OpenSSL does not check the certificate again."""

    def said(
        link: Link, context: ssl.SSLContext, session: ssl.SSLSession | None
    ) -> tuple[bytes, ssl.SSLSession | None]:
        host, port = link.address.split(":")
        raw = socket.create_connection((host, int(port)), 20)
        with raw, context.wrap_socket(raw, server_hostname=SERVER_NAME, session=session) as to:
            assert to.session_reused == (session is not None)
            with contextlib.suppress(OSError):
                to.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
                answer, resumable = to.recv(100), to.session
                with contextlib.suppress(ssl.SSLError):  # a session that ends without close_notify is not resumed
                    to.unwrap()
                return answer, resumable
            return b"", None

    async def ask(_server: RpcServer, link: Link) -> None:
        context = context_of(link, HTTP2_ALPN)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        answer, session = await asyncio.to_thread(said, link, context, None)
        assert answer
        assert session is not None
        assert (await asyncio.to_thread(said, link, context, session))[0]
        now_s = tls_listener.time.time()
        monkeypatch.setattr(tls_listener.time, "time", lambda: now_s + 10 * 365 * 86400)
        assert (await asyncio.to_thread(said, link, context, session))[0] == b""

    served(tmp_path, ask, tls=True)


def test_handshakes_that_do_not_end_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By time, and by number the oldest first; whoever completes one is served meanwhile."""
    limited(monkeypatch, handshake_s=2.0, handshakes=4)
    caplog.set_level("INFO", "jellybean.tls")

    async def ask(server: RpcServer, link: Link) -> None:
        handshakes, connections = handshakes_of(server), server.ports[0].connections
        waiting = [await connected(link, None) for _ in range(10)]
        for _, writer in waiting:
            writer.write(b"\x16\x03\x01")  # the beginning of a record
        async with link.channel() as to:
            assert await to.unary_unary(ECHO)(b"x") == b"x"
        assert len(handshakes) <= 4
        async with asyncio.timeout(50):
            for reader, writer in waiting:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        assert not handshakes
        assert not connections

    served(tmp_path, ask, tls=True)
    assert sum("unfinished handshakes" in text for text in caplog.messages) >= 6
    assert any("no TLS handshake within 2 s" in text for text in caplog.messages)


def test_a_failed_handshake_is_logged_once_and_its_peer_need_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that reads nothing keeps the socket from being closed; the time limit then aborts it."""
    limited(monkeypatch, handshake_s=2.0)
    caplog.set_level("INFO", "jellybean.tls")

    async def ask(server: RpcServer, link: Link) -> None:
        handshakes = handshakes_of(server)
        reader, writer = await connected(link, None)
        silent: Any = reader
        silent._transport.pause_reading()
        async with asyncio.timeout(50):
            while not handshakes:
                await asyncio.sleep(0.01)
            (transport,) = handshakes
            transport._socket.write(bytes(2**25))  # more than the kernel's buffers hold
            writer.write(b"plain text")
            while transport._socket is not None:
                await asyncio.sleep(0.01)
        writer.close()

    served(tmp_path, ask, tls=True)
    assert caplog.messages == ["refused at the handshake: it does not speak TLS (127.0.0.1)"]


def test_a_connection_of_the_maximum_age_ends_without_a_failed_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, age_s=0.3, grace_s=3.0)

    async def ask(server: RpcServer, link: Link) -> None:
        async with link.channel() as to:
            stream = to.stream_stream(BIDI)()
            await stream.write(b"first")
            assert await stream.read() == b"first"
            (first,) = server.ports[0].connections
            seen = {first}
            while len(seen) < 3:  # within some 0.7 s: long before the end of the grace
                assert await to.unary_unary(ECHO)(b"x") == b"x"
                seen |= server.ports[0].connections
                await asyncio.sleep(0.01)
            await stream.write(b"last")  # the stream goes on on the old connection
            assert await stream.read() == b"last"
            assert first in server.ports[0].connections
            with pytest.raises(grpc.aio.AioRpcError, match="the connection has reached its maximum age"):
                await stream.read()
            assert first not in server.ports[0].connections  # at the end of the grace

    served(tmp_path, ask, tls=True)


def test_close_notify_is_answered_and_calls_are_cancelled(tmp_path: Path) -> None:
    """Half of a connection is no connection: as when a plain one is closed."""

    async def ask(server: RpcServer, link: Link) -> None:
        reader, writer = await connected(link, None)
        tls, incoming, outgoing = await handshake(link.tls_context(HTTP2_ALPN), reader, writer)
        tls.write(PREFACE + frame(SETTINGS, 0, 0, b"") + call_of(1, b"x").replace(ECHO.encode(), SLOW.encode()))
        writer.write(outgoing.read())
        async with asyncio.timeout(10):
            while not server.calls_in_progress:
                await asyncio.sleep(0.01)
            with pytest.raises(ssl.SSLWantReadError):
                tls.unwrap()
            writer.write(outgoing.read())
            incoming.write(await reader.read())  # all that is left: the socket is closed too
            with pytest.raises(ssl.SSLZeroReturnError):  # the server's close_notify
                while True:
                    tls.read(2**16)
            while server.calls_in_progress or server.open_connections:
                await asyncio.sleep(0.01)
        writer.close()

    served(tmp_path, ask, tls=True)


def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Backpressure through TLS: what the socket does not take is bounded, and goes on when it is read."""

    async def ask(server: RpcServer, link: Link) -> None:
        reader, writer = await link.connect()
        wide = struct.pack(">HI", 4, 2**31 - 1)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, wide) + frame(8, 0, 0, (2**30).to_bytes(4, "big")))
        for number in range(24):
            writer.write(call_of(2 * number + 1, LARGE[: 2**20 - 5]))
        transport: Any = reader
        transport._transport.pause_reading()
        async with asyncio.timeout(20):
            while True:
                await asyncio.sleep(0.05)
                if any(
                    isinstance(connection, Http2Connection) and connection.responses.is_paused
                    for connection in server.ports[0].connections
                ):
                    break
        (connection,) = server.ports[0].connections
        found: Any = connection
        assert found._out.transport.get_write_buffer_size() < 2**23
        transport._transport.resume_reading()
        got = 0
        async with asyncio.timeout(30):
            while got < 24 * 2**20:
                got += len(await reader.read(2**18))
        writer.close()

    served(tmp_path, ask, tls=True)


def test_our_own_protocol_over_tls_has_streams_only_and_asks_the_policy_first(tmp_path: Path) -> None:
    """No unary calls, and no memory for a message before the policy has accepted its stream."""

    async def ask(server: RpcServer, link: Link) -> None:
        context = link.tls_context(frames.STREAMS_ALPN)
        call = frames.HEAD.pack(0.0, len(ECHO), 0) + ECHO.encode() + b"x"
        assert await received(link, context, frames.FRAME.pack(len(call) + 5, 1, frames.CALL) + call) == b""
        assert await received(link, context, frames.FRAME.pack(2**24, 1, frames.MESSAGE) + bytes(2**16)) == b""
        method = DELIVER_METHOD.encode()
        metadata = b'{"%s": "alice", "jellybean-protocol": "2"}' % SENDER_KEY.encode()
        opening = frames.HEAD.pack(0.0, len(method), len(metadata)) + method + metadata
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, Inboxes(lambda *_: None, lambda _: False).deliver_raw)
        reader, writer = await connected(link, context)
        writer.write(frames.FRAME.pack(len(opening) + 5, 1, frames.OPEN) + opening)
        answer = await read_until(reader, b"may not call")
        assert answer[frames.FRAME.size] == grpc.StatusCode.PERMISSION_DENIED.value[0]
        writer.close()

    served(tmp_path, ask, tls=True)


def _records(link: Link) -> Iterator[bytes]:
    """The first flights of right clients: a ClientHello of each version."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = context_of(link, HTTP2_ALPN)
        context.maximum_version = version
        outgoing = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=SERVER_NAME).do_handshake()
        yield outgoing.read()


def mutated(draw: random.Random, data: bytes) -> tuple[bytes, int]:
    """The data with one to four changes, and the number of bytes that were replaced, removed or added."""
    found, changed = bytearray(data), 0
    for _ in range(draw.randint(1, 4)):
        at, kind = draw.randrange(len(found) or 1), draw.random()
        if kind < 0.5 and found:
            found[at] = draw.choice((0, 1, 0x14, 0x15, 0x16, 0x17, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            changed += 1
            continue
        before = len(found)
        if kind < 0.7:
            del found[at : at + draw.randint(1, 20)]
        elif kind < 0.9:
            found[at:at] = draw.randbytes(draw.randint(1, 20))
        else:
            found += found[at : at + 50]
        changed += abs(len(found) - before)
    return bytes(found), changed


@pytest.mark.slow
@pytest.mark.parametrize("count", [FUZZ, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])])
def test_mutated_records(tmp_path: Path, count: int) -> None:
    """ClientHellos, and records after the handshake: the connection ends, nothing is left, others are served.

    Over a million bytes are changed by the nightly count.
    """
    changes: list[int] = []

    async def ask(server: RpcServer, link: Link) -> None:
        draw, hellos = random.Random(11), list(_records(link))
        context = link.tls_context(HTTP2_ALPN)
        for number in range(count):
            reader, writer = await connected(link, None)
            if number % 4:
                data, changed = mutated(draw, hellos[number % 2])
            else:
                data, changed = mutated(draw, await _records_after_handshake(context, reader, writer))
            changes.append(changed)
            cut = draw.randrange(len(data) + 1)
            await send_in_two(reader, writer, data, cut, half_close=number % 3 > 0)
            if number % 50 == 49:
                await assert_echoes(link)
        handshakes = handshakes_of(server)
        async with asyncio.timeout(30):
            while server.calls_in_progress or server.open_connections or handshakes:
                await asyncio.sleep(0.01)

    served(tmp_path, ask, 60 + count / 30, tls=True)
    assert sum(changes) > 10 * count


async def _records_after_handshake(
    context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    """Complete a handshake; returns the records of a call, which are not sent yet."""
    tls, _incoming, outgoing = await handshake(context, reader, writer)
    writer.write(outgoing.read())
    for data in (PREFACE + frame(SETTINGS, 0, 0, b""), call_of(1, b"x" * 100), call_of(3, b"y")):
        tls.write(data)
    return outgoing.read()
