"""A server of ours with methods of every kind, plain or with TLS, and clients that write its bytes themselves."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from jellybean.serving import open_authority
from jellybean_agent import CertificateFolder, Identity, Policy, Role, RpcServer, Transport
from jellybean_agent.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from jellybean_agent.rpc.hpack import encode_headers
from jellybean_agent.rpc.tls.listener import HTTP2_ALPN
from jellybean_agent.security.tls_context import client_context

SERVICE = "inference.GRPCInferenceService"  # one that the policy knows
ECHO, SLOW, BIDI, BREAK = (f"/{SERVICE}/{name}" for name in ("Echo", "Slow", "Bidi", "Break"))
LARGE = random.Random(1).randbytes(3 * 2**20)
Found = TypeVar("Found")


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def slow(_request: bytes, context: Any) -> bytes:
    cancelled = asyncio.Event()
    context.add_done_callback(lambda _: cancelled.set())
    await asyncio.sleep(30)
    return b""


async def bidi(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def broken(_request: bytes, _context: Any) -> bytes:
    raise ZeroDivisionError


@dataclass(frozen=True)
class Link:
    """Where the server is, and how to connect to it."""

    address: str
    transport: Transport

    @property
    def path(self) -> str:
        """Of the Unix socket."""
        return self.address.removeprefix("unix:")

    @property
    def is_tls(self) -> bool:
        return not self.address.startswith("unix:")

    def channel(self) -> grpc.aio.Channel:
        return self.transport.channel(self.address)

    def tls_context(self, *alpn: str) -> ssl.SSLContext:
        """Of a client with the right certificate."""
        assert self.transport.certificate is not None
        return client_context(self.transport.certificate.current(), alpn)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of bytes, within TLS if the server has it."""
        if not self.is_tls:
            return await asyncio.open_unix_connection(self.path)
        host, port = self.address.split(":")
        name = Identity("w", Role.GATEWAY).tls_name
        return await asyncio.open_connection(host, int(port), ssl=self.tls_context(HTTP2_ALPN), server_hostname=name)


def served(
    folder: Path,
    ask: Callable[[RpcServer, Link], Awaitable[Found]],
    within_s: float = 60,
    *,
    tls: bool = False,
) -> Found:
    """What `ask` finds at a server; nothing may go wrong in the event loop meanwhile."""

    async def run() -> Found:
        wrong: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        ours, theirs = transports(folder) if tls else (Transport("w", insecure=True),) * 2
        server = ours.server(Policy("w", ()))
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "Slow": grpc.unary_unary_rpc_method_handler(slow),
            "Break": grpc.unary_unary_rpc_method_handler(broken),
            "Bidi": grpc.stream_stream_rpc_method_handler(bidi),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        folder.chmod(0o700)
        address = "127.0.0.1:0" if tls else f"unix:{folder}/s"
        port = ours.bind(server, address)
        await server.start()
        try:
            link = Link(f"127.0.0.1:{port}" if tls else address, theirs)
            found = await asyncio.wait_for(ask(server, link), within_s)
        finally:
            await server.stop(0.1)
        assert not wrong
        return found

    return asyncio.run(run())


def transports(folder: Path) -> tuple[Transport, Transport]:
    """A gateway's and a client's, with certificates of one authority."""
    authority = open_authority(folder / "ca")
    authority.equip(folder / "gateway", Identity("w", Role.GATEWAY), hosts=("127.0.0.1",))
    authority.equip(folder / "client", Identity("w", Role.CLIENT, "alice"))
    return Transport("w", CertificateFolder(folder / "gateway")), Transport("w", CertificateFolder(folder / "client"))


async def status(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def slow_call(number: int) -> bytes:
    head = frame(HEADERS, END_HEADERS, number, encode_headers(headers_of(SLOW)))
    return head + frame(DATA, END_STREAM, number, b"\0\0\0\0\0")


def reset_of(number: int) -> bytes:
    return frame(3, 0, number, (8).to_bytes(4, "big"))


async def read_until(reader: asyncio.StreamReader, what: bytes) -> bytes:
    found = b""
    async with asyncio.timeout(50):
        while what not in found:
            part = await reader.read(2**16)
            assert part
            found += part
    return found


async def send_in_two(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, cut: int, *, half_close: bool
) -> None:
    """Send bytes in two pieces; the connection is closed at once, or a moment after what the server says."""
    writer.write(data[:cut])
    await asyncio.sleep(0)
    writer.write(data[cut:])
    if half_close:
        writer.write_eof()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(0.02):
            await reader.read(2**16)
    writer.close()


async def assert_echoes(link: Link) -> None:
    """A call on a new connection is answered."""
    async with link.channel() as to:
        assert await to.unary_unary(ECHO)(b"on") == b"on"


@contextlib.asynccontextmanager
async def raw_connection(link: Link, data: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await link.connect()
    writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + data)
    try:
        yield reader, writer
    finally:
        writer.close()


def call_of(number: int, message: bytes, *more: tuple[bytes, bytes]) -> bytes:
    head = frame(HEADERS, END_HEADERS, number, encode_headers((*headers_of(ECHO), *more)))
    return head + frame(DATA, END_STREAM, number, b"\0" + len(message).to_bytes(4, "big") + message)


def headers_of(path: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x")),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
    )
