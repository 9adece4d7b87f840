"""A client of one stream of our own protocol on a Unix socket, in the event loop: callbacks, no task per message.

All writes of one turn of the event loop are sent together.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterable
from typing import cast

import grpc

from jellybean_agent.errors import AgentError, StatusError, TransientError, describe_error, status_from_number
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.rpc.unix_socket_frames import (
    AFTER_LENGTH,
    CANCEL,
    END,
    FAILED,
    FRAME,
    HEAD,
    MESSAGE,
    OPEN,
    SOCKET_BYTES,
    STATUS,
    STREAMS_GREETING,
    peer_uid,
)
from jellybean_agent.rpc.write_buffer import WriteBuffer

CONNECT_S = 5.0
UNSENT_BYTES = 2**20  # in the transport, above which senders wait
_MAX_RESPONSE_BYTES = 2**20
_NUMBER = 1  # of the connection's only call


class UnixSocketStream(asyncio.Protocol):
    """One call with streams of requests and responses, from `start` on.

    `ended` is done when the call is over: without exception after status OK, with UnixSocketRpcUnsupportedError if the
    server does not speak the protocol (then no request was sent), else with an AgentError.
    """

    def __init__(
        self, path: str, method: str, metadata: Iterable[tuple[str, str]], on_response: Callable[[bytes], None]
    ):
        self._loop, self._path, self._on_response = asyncio.get_running_loop(), path, on_response
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._method, self._metadata = method.encode(), json.dumps(dict(metadata)).encode()
        self._transport: asyncio.Transport | None = None
        self._out = WriteBuffer()
        self._is_open = self._is_paused = self._is_half_closed = False
        self._data = b""  # received bytes of an incomplete frame
        self._writable = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and open the call."""
        self._connecting = self._loop.create_task(self._connect())

    @property
    def may_send(self) -> bool:
        """True if a request can be sent now."""
        return self._is_open and not self._is_paused and not self._is_half_closed and not self.ended.done()

    def send(self, *message: bytes | memoryview) -> None:
        """Send one request, given in parts. Only while `may_send`."""
        first, *more = message
        self._out.write(FRAME.pack(sum(map(len, message)) + AFTER_LENGTH, _NUMBER, MESSAGE) + first, *more)

    async def writable(self) -> None:
        """Wait until `may_send` is true. AgentError if the call is over."""
        while not self.may_send:
            if self.ended.done():
                self.ended.result()
                raise TransientError("it closed the stream")
            self._writable.clear()
            await self._writable.wait()

    def half_close(self) -> None:
        """Send no further request; the server ends the call once it has read them all."""
        if not self._is_half_closed and not self.ended.done():
            self._is_half_closed = True
            if self._is_open:
                self._out.write(FRAME.pack(AFTER_LENGTH, _NUMBER, END))

    def cancel(self) -> None:
        """Cancel the call."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._is_open and not self.ended.done():
            self._out.write_through(FRAME.pack(AFTER_LENGTH, _NUMBER, CANCEL))
        self._end(TransientError("it was broken off"))

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._open_connection()
        except TimeoutError:
            self._end(TransientError(f"{self._path} takes no connection within {CONNECT_S:g} s"))
        except OSError as error:
            self._end(TransientError(f"cannot connect to {self._path}: {describe_error(error)}"))

    async def _open_connection(self) -> None:
        await self._loop.create_unix_connection(lambda: self, self._path)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        found: socket.socket = transport.get_extra_info("socket")
        if self.ended.done():
            self._transport.abort()
            return
        if peer_uid(found) != os.geteuid():
            self._end(TransientError(f"{self._path} is served by another user"))
            return
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._transport.set_write_buffer_limits(UNSENT_BYTES)
        self._transport.write(STREAMS_GREETING)

    def data_received(self, data: bytes) -> None:
        data, at = self._data + data if self._data else data, 0
        if not self._is_open:
            if len(data) < len(STREAMS_GREETING) and STREAMS_GREETING.startswith(data):
                self._data = data
                return
            if not data.startswith(STREAMS_GREETING):
                self._end(UnixSocketRpcUnsupportedError(f"{self._path} has no Unix-socket RPC with streams"))
                return
            at = len(STREAMS_GREETING)
            self._open_call()
        while len(data) - at >= FRAME.size and not self.ended.done():
            size, number, kind = FRAME.unpack_from(data, at)
            if not AFTER_LENGTH <= size <= _MAX_RESPONSE_BYTES or number != _NUMBER:
                self._end(TransientError(f"unexpected frame of kind {kind}, {size} bytes, call {number}"))
                return
            end = at + 4 + size
            if len(data) < end:
                break
            self._take_frame(kind, data[at + FRAME.size : end])
            at = end
        self._data = data[at:]

    def _open_call(self) -> None:
        self._is_open = True
        self._out.transport = self._transport
        head = HEAD.pack(0.0, len(self._method), len(self._metadata)) + self._method + self._metadata
        self._out.write(FRAME.pack(len(head) + AFTER_LENGTH, _NUMBER, OPEN) + head)
        if self._is_half_closed:
            self._out.write(FRAME.pack(AFTER_LENGTH, _NUMBER, END))
        self._out.flush()
        self._writable.set()

    def _take_frame(self, kind: int, payload: bytes) -> None:
        if kind == MESSAGE:
            self._on_response(payload)
        elif kind == END:
            self._end(None)
        elif kind == FAILED and payload:
            status = status_from_number(STATUS.unpack_from(payload)[0])
            reason = payload[STATUS.size :].decode("utf-8", "replace")
            is_served = status is not grpc.StatusCode.UNIMPLEMENTED
            self._end(StatusError(status, reason) if is_served else UnixSocketRpcUnsupportedError(reason))
        else:
            self._end(TransientError(f"unexpected frame of kind {kind}, {len(payload)} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._out.transport = None
        if self._is_open:
            self._end(TransientError(describe_error(error) if error else "it closed the connection"))
        else:
            self._end(UnixSocketRpcUnsupportedError(f"{self._path} has no Unix-socket RPC with streams"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._writable.set()

    def _end(self, error: AgentError | UnixSocketRpcUnsupportedError | None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
                self.ended.exception()  # marks it as retrieved, so that asyncio does not log it
        self._writable.set()
        if self._transport is not None:
            self._transport.close() if error is None else self._transport.abort()
