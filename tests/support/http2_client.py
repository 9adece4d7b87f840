"""An HTTP/2 client in memory: its frames go straight into a server's connection, whose frames it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import grpc

from jellybean_agent import PORT_LIMITS, Admission, ListeningPort, OpenPolicy, RpcServer, make_server
from jellybean_agent.admission.turns import PeerTurns
from jellybean_agent.rpc.frames import (
    ACK,
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADER_BYTES,
    HEADERS,
    PREFACE,
    RESET,
    SETTING,
    SETTINGS,
    WINDOW,
    frame,
)
from jellybean_agent.rpc.hpack import Decoder, Header, encode_headers
from jellybean_agent.rpc.http2 import Http2Connection
from jellybean_agent.rpc.port import RpcPort
from tests.support.memory_connection import MemoryTransport

SERVICE = "test.Calls"
ECHO, SLOW, BIDI, BREAK, SPLIT = (f"/{SERVICE}/{name}" for name in ("Echo", "Slow", "Bidi", "Break", "Split"))
ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME = 2, 4, 5  # identifiers of settings
# Numbers of statuses, as `Http2Client.status` returns them.
UNKNOWN, INVALID, DEADLINE, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 2, 3, 4, 8, 12, 13, 14


@dataclass(frozen=True)
class Frame:
    """A frame that the server sent."""

    kind: int
    flags: int
    number: int
    payload: bytes


def message(content: bytes, *, compressed: int = 0) -> bytes:
    """A gRPC message: its prefix and content."""
    return bytes((compressed,)) + len(content).to_bytes(4, "big") + content


def call_headers(path: str, *more: Header, method: bytes = b"POST") -> bytes:
    """The header block of a call."""
    return encode_headers(
        (
            *((b":method", method), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x")),
            *((b"te", b"trailers"), (b"content-type", b"application/grpc"), *more),
        )
    )


def open_call(number: int, path: str, *more: Header) -> bytes:
    """The HEADERS frame that opens a call."""
    return frame(HEADERS, END_HEADERS, number, call_headers(path, *more))


def unary_call(number: int, content: bytes, path: str = ECHO, *more: Header) -> bytes:
    """All frames of a call with one request."""
    return open_call(number, path, *more) + frame(DATA, END_STREAM, number, message(content))


def settings(*values: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*value) for value in values))


def number_of(size: int) -> bytes:
    """A number of four bytes, as payloads of frames have it."""
    return size.to_bytes(4, "big")


def window(number: int, more: int) -> bytes:
    """A WINDOW_UPDATE frame: the window of a stream, or of the connection (0), grows by `more` bytes."""
    return frame(WINDOW, 0, number, number_of(more))


def reset(number: int) -> bytes:
    """The RST_STREAM frame with which a client cancels a call."""
    return frame(RESET, 0, number, number_of(CANCEL))


def split_frames(data: bytes) -> list[Frame]:
    """The frames in these bytes, which are complete."""
    frames, at = [], 0
    while at < len(data):
        high, low, kind, flags, number = HEAD.unpack_from(data, at)
        end = at + HEAD.size + (high << 16 | low)
        frames.append(Frame(kind, flags, number, data[at + HEAD.size : end]))
        at = end
    assert at == len(data)
    return frames


async def settle(turns: int = 10) -> None:
    """Let the tasks of the event loop run until they wait."""
    for _ in range(turns):
        await asyncio.sleep(0)


class CallServer:
    """A server with a method of each kind, and what its handlers have noted. `clock`: of the peers' turns."""

    def __init__(
        self, admission: Admission | None = None, clock: Callable[[], float] = lambda: 0.0, **limits: Any
    ) -> None:
        self.contexts: list[Any] = []
        self.cancelled: list[int] = []
        self.got: list[bytes] = []
        self.server: RpcServer = make_server(
            OpenPolicy(), self.contexts.append, admission, replace(PORT_LIMITS[ListeningPort.CLIENTS], **limits)
        )
        self.port = self.server.open_port()
        self.port.turns = PeerTurns(clock)
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Slow": grpc.unary_unary_rpc_method_handler(self._slow),
            "Break": grpc.unary_unary_rpc_method_handler(self._break),
            "Split": grpc.unary_stream_rpc_method_handler(self._split),
            "Bidi": grpc.stream_stream_rpc_method_handler(self._bidi),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def _echo(self, request: bytes, _context: Any) -> bytes:
        return request

    async def _slow(self, _request: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.append(context.number)
            raise
        return b""

    async def _break(self, _request: bytes, _context: Any) -> bytes:
        raise ZeroDivisionError

    async def _split(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for octet in request:
            yield bytes([octet])

    async def _bidi(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.got.append(request)
            yield request


class Http2Client:
    """One connection to a server. `answers`: the frames that it has sent so far, its preface apart."""

    def __init__(self, port: RpcPort, address: str = "127.0.0.1") -> None:
        self.connection = Http2Connection(port)
        self.transport = MemoryTransport(self.connection)
        self.transport.peer = address, 40_000
        self.transport.holds_back = True
        self.transport.connect()
        self._decoder: Decoder[dict[bytes, bytes]] = Decoder(HEADER_BYTES, dict)

    async def greet(self, *values: tuple[int, int]) -> list[Frame]:
        """Begin the connection with these settings; returns the server's first frames."""
        return await self.send(PREFACE + settings(*values))

    async def send(self, data: bytes, pieces: int = 0) -> list[Frame]:
        """Send bytes; returns what the server answers."""
        self.transport.receive(data, pieces)
        return await self.frames()

    async def frames(self) -> list[Frame]:
        """What the server has sent since the last time, once it has parsed all that it was sent."""
        await settle()
        while self.connection.waits_for_turn or self.transport.is_delivering:
            await settle()
        return split_frames(self.transport.take())

    def headers(self, block: Frame | bytes) -> dict[bytes, bytes]:
        """The headers of a HEADERS frame."""
        return self._decoder.decode(block.payload if isinstance(block, Frame) else block)

    def status(self, answers: Iterable[Frame], number: int) -> tuple[int, str]:
        """The trailing status of a call: its number and its text."""
        (last,) = (
            found for found in answers if found.kind == HEADERS and found.flags & END_STREAM and found.number == number
        )
        headers = self.headers(last)
        return int(headers[b"grpc-status"]), headers.get(b"grpc-message", b"").decode()


async def greeted_client(
    server: CallServer | None = None, *values: tuple[int, int], address: str = "127.0.0.1"
) -> Http2Client:
    """A client whose connection has begun with these settings, to a new server if there is none."""
    client = Http2Client((server or CallServer()).port, address)
    await client.greet(*values)
    return client


def content(answers: Iterable[Frame], number: int) -> bytes:
    """The bytes of a call's DATA frames."""
    return b"".join(found.payload for found in answers if found.kind == DATA and found.number == number)


def goaway(answers: Iterable[Frame]) -> tuple[int, int, str]:
    """The last stream, the error code and the reason of the one GOAWAY frame."""
    (last,) = (found for found in answers if found.kind == GOAWAY)
    return int.from_bytes(last.payload[:4], "big"), int.from_bytes(last.payload[4:8], "big"), last.payload[8:].decode()


def is_acknowledged(answers: Iterable[Frame]) -> bool:
    """Whether the server has acknowledged SETTINGS."""
    return any(found.kind == SETTINGS and found.flags & ACK for found in answers)
