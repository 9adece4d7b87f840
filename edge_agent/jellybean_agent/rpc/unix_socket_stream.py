"""The calling end of one stream over the fast lane, in the event loop: callbacks, no task for what comes.

What is sent in one turn of the event loop leaves together.
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
from jellybean_agent.rpc.gathering import write_together
from jellybean_agent.rpc.unix_socket import (
    CANCEL,
    END,
    FAILED,
    FRAME,
    HEAD,
    MESSAGE,
    OPEN,
    SOCKET_BYTES,
    STATUS,
    peer_uid,
)
from jellybean_agent.rpc.unix_socket import WITH_STREAMS as GREETING
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError

_CONNECT_S = 5.0
_UNSENT_BYTES = 2**20  # above it senders wait
_MOST_BYTES = 2**20  # of one response
_NUMBER = 1  # of the connection's one call
_AFTER_LENGTH = FRAME.size - 4


class UnixSocketStream(asyncio.Protocol):
    """A call under way. `ended` is done when it is over: with an AgentError unless it ended well.

    NoLaneError: who listens there does not speak the lane; nothing was sent.
    """

    def __init__(self, path: str, method: str, metadata: Iterable[tuple[str, str]], take: Callable[[bytes], None]):
        """`take`: gets each response."""
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop, self._path, self._take = loop, path, take
        self._head = method.encode(), json.dumps(dict(metadata)).encode()
        self._transport: asyncio.Transport | None = None
        self._is_greeted = self._is_paused = self._is_finished = self._is_flushing = False
        self._data = b""
        self._out: list[bytes | memoryview] = []
        self._room = asyncio.Event()
        self._connecting = loop.create_task(self._connect())

    @property
    def may_send(self) -> bool:
        """Whether a request can leave at once."""
        return self._is_greeted and not self._is_paused and not self._is_finished and not self.ended.done()

    def send(self, *message: bytes | memoryview) -> None:
        """One request, in parts; only where it `may_send`."""
        first, *more = message
        self._write(FRAME.pack(sum(map(len, message)) + _AFTER_LENGTH, _NUMBER, MESSAGE) + first, *more)

    async def room(self) -> None:
        """Wait until it `may_send`; AgentError when it never will."""
        while not self.may_send:
            if self.ended.done():
                self.ended.result()
                raise TransientError("it closed the stream")
            self._room.clear()
            await self._room.wait()

    def finish(self) -> None:
        """Send no further request; it `ended` when the other end has said so too."""
        if not self._is_finished and not self.ended.done():
            self._is_finished = True
            self._write(FRAME.pack(_AFTER_LENGTH, _NUMBER, END))

    def cancel(self) -> None:
        """Break it off."""
        self._connecting.cancel()
        if self._transport is not None and not self.ended.done():
            self._write(FRAME.pack(_AFTER_LENGTH, _NUMBER, CANCEL))
            self._flush()
        self._end(TransientError("it was broken off"))

    # -- asyncio ------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._loop.create_unix_connection(lambda: self, self._path)
        except TimeoutError:
            self._end(TransientError(f"{self._path} takes no connection within {_CONNECT_S:g} s"))
        except OSError as error:
            self._end(TransientError(f"cannot connect to {self._path}: {describe_error(error)}"))

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
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        data, at = self._data + data if self._data else data, 0
        if not self._is_greeted:
            if len(data) < len(GREETING) and GREETING.startswith(data):
                self._data = data
                return
            if not data.startswith(GREETING):
                self._end(UnixSocketRpcUnsupportedError(f"{self._path} has no lane for streams"))
                return
            at = len(GREETING)
            self._open()
        while len(data) - at >= FRAME.size and not self.ended.done():
            size, number, kind = FRAME.unpack_from(data, at)
            if not _AFTER_LENGTH <= size <= _MOST_BYTES or number != _NUMBER:
                self._end(TransientError(f"a frame {kind} of {size} bytes of call {number} came"))
                return
            end = at + 4 + size
            if len(data) < end:
                break
            self._frame(kind, data[at + FRAME.size : end])
            at = end
        self._data = data[at:]

    def _open(self) -> None:
        self._is_greeted = True
        method, metadata = self._head
        head = HEAD.pack(0.0, len(method), len(metadata)) + method + metadata
        waiting, self._out = self._out, []
        self._out = [FRAME.pack(len(head) + _AFTER_LENGTH, _NUMBER, OPEN) + head, *waiting]
        self._flush()
        self._room.set()

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == MESSAGE:
            self._take(payload)
        elif kind == END:
            self._end(None)
        elif kind == FAILED and payload:
            status = status_from_number(STATUS.unpack_from(payload)[0])
            reason = payload[STATUS.size :].decode("utf-8", "replace")
            is_known = status is not grpc.StatusCode.UNIMPLEMENTED
            self._end(StatusError(status, reason) if is_known else UnixSocketRpcUnsupportedError(reason))
        else:
            self._end(TransientError(f"a frame {kind} of {len(payload)} bytes came"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._is_greeted:
            self._end(TransientError(describe_error(error) if error else "it closed the connection"))
        else:
            self._end(UnixSocketRpcUnsupportedError(f"{self._path} has no lane for streams"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._room.set()

    def _write(self, *parts: bytes | memoryview) -> None:
        self._out += parts
        if not self._is_flushing and self._is_greeted:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_greeted and self._transport is not None and self._out:
            out, self._out = self._out, []
            write_together(self._transport, out)

    def _end(self, error: AgentError | UnixSocketRpcUnsupportedError | None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
                self.ended.exception()  # who waits for nothing is not to be told that nobody looked
        self._room.set()
        if self._transport is not None:
            self._transport.close() if error is None else self._transport.abort()
