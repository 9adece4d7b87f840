"""A connection of our own protocol on a Unix socket, which clients on the same host may use instead of HTTP/2.

It serves the same methods with the same policy, limits and deadlines. Calls of one connection run concurrently. Only
peers with the same user id are accepted (SO_PEERCRED).
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Callable
from typing import cast

import grpc
import numpy as np

from jellybean_agent.admission.gate import GATE_ENTRY
from jellybean_agent.admission.turns import PeerTurn, WorkInTurns
from jellybean_agent.rpc.calls import (
    NO_AUTH_CONTEXT,
    SHUTTING_DOWN,
    AuthContext,
    Caller,
    CallHeaders,
    CallServer,
    Metadata,
    Method,
    RpcCall,
    unknown_method,
)
from jellybean_agent.rpc.unix_socket_frames import (
    AFTER_LENGTH,
    CALL,
    CANCEL,
    END,
    FAILED,
    FRAME,
    GREETING,
    HEAD,
    MESSAGE,
    OPEN,
    REPLY,
    SOCKET_BYTES,
    STATUS,
)
from jellybean_agent.rpc.write_buffer import WriteBuffer
from jellybean_agent.system.addresses import UNIX_PEER, peer_name

_LENGTHS_BYTES = 4  # of HEAD's two lengths, at its end
_MAX_HEAD_BYTES = 2**14
_UNSENT_BYTES = 2**20  # bytes in the transport's write buffer above which reading pauses
_MAX_UNSENT_BYTES = 2**22  # unsent stream bytes above which the connection is closed: the client does not read
_READ_BYTES = 2**16
_CACHED_HEADERS = 64
_RETRY_S = 0.02  # between two looks whether there is memory for the next large frame


class _BrokenError(Exception):
    """The client violated the protocol; the connection is closed."""


class UnixSocketConnection(asyncio.BufferedProtocol):
    """A client's connection, and the `CallConnection` of its calls."""

    def __init__(
        self, server: CallServer, greeting: bytes = GREETING, auth_context: AuthContext = NO_AUTH_CONTEXT
    ) -> None:
        self._server, self._greeting, self.auth_context = server, greeting, auth_context
        self.peer = "unix:"
        self._out = WriteBuffer()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._filled = 0  # bytes in the buffer, or in the large frame
        self._large: memoryview | None = None  # memory of a frame that is larger than the read buffer
        self._counted = 0  # bytes of that frame, which are the client's
        self._waits_for_memory = self._is_paused = False
        self._turn: PeerTurn | None = None  # of a peer elsewhere; on a Unix socket it is this user
        self._turns = WorkInTurns(self._parse, self._resume)
        self.caller: Caller | None = None
        self._open: dict[int, RpcCall] = {}
        self._headers: dict[bytes, CallHeaders] = {}
        self._is_draining = self._is_closed = False

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out.transport = found = cast(asyncio.Transport, transport)
        found.set_write_buffer_limits(_UNSENT_BYTES)
        self.peer = peer_name(transport)
        if self.peer == UNIX_PEER:
            found.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self.caller = self._server.opened(self, self.peer, self.auth_context, found.get_extra_info(GATE_ENTRY))
        if self.caller is None:
            self._is_closed = True
            found.abort()
        else:
            self._turn = self.caller.turn if self.auth_context else None
            found.write(self._greeting)

    def connection_lost(self, error: Exception | None) -> None:
        self._out.transport = None
        self._is_closed = True
        for call in list(self._open.values()):
            self._drop(call)
        if self.caller is not None:
            self.caller.bytes.give(self._counted)
        self._server.closed(self, self.caller)

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._out.transport is not None:
            self._out.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._read_on()

    def _read_on(self) -> None:
        is_waiting = self._is_paused or self._waits_for_memory or self._turns.is_waiting
        if self._out.transport is not None and not is_waiting:
            self._out.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._buffer if self._large is None else self._large
        return target[self._filled :]

    def buffer_updated(self, size: int) -> None:
        if self._is_closed:
            return
        self._filled += size
        self._out.is_held = True  # all answers to this read leave together
        try:
            if self._turn is None:
                self._parse(None, 0.0)
            else:
                self._turns.run(self._turn, self._pause_for_turn)
        except _BrokenError:
            self.close()
        finally:
            self._out.is_held = False
            self._out.flush()

    def feed(self, data: bytes) -> None:
        """Process bytes that were read together with the client's greeting."""
        while data and not self._is_closed:
            room = self.get_buffer(0)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)

    # -- frames -------------------------------------------------------------------------------------------------------

    def _pause_for_turn(self) -> bool:
        """Receive nothing until the peer's next turn."""
        if self._is_closed or self._out.transport is None:
            return False
        self._out.transport.pause_reading()
        return True

    def _parse(self, clock: Callable[[], float] | None, until_s: float) -> bool:
        """Handle complete frames. False if the time was over before the last one."""
        if self._large is not None:
            if self._filled == len(self._large):
                whole, self._large, self._filled = self._large, None, 0
                _, number, kind = FRAME.unpack_from(whole)
                self._take_frame(number, kind, whole[FRAME.size :])
                self._give_counted()
            return True
        at, filled, buffer = 0, self._filled, self._buffer
        is_over = True
        while filled - at >= FRAME.size:
            if clock is not None and clock() >= until_s:
                is_over = False
                break
            size, number, kind = FRAME.unpack_from(buffer, at)
            length = 4 + size
            if length < FRAME.size or length > self._server.max_message_bytes + _MAX_HEAD_BYTES:
                raise _BrokenError
            if length > filled - at:
                if length > len(buffer):
                    if self.auth_context and number not in self._open:
                        raise _BrokenError  # from another machine, only calls that the policy accepted may use memory
                    self._begin_large(length, bytes(buffer[at:filled]))
                    return True
                break
            self._take_frame(number, kind, bytes(buffer[at + FRAME.size : at + length]))
            at += length
        if at:
            left = bytes(buffer[at:filled])
            buffer[: len(left)] = left
            self._filled = len(left)
        return is_over

    def _begin_large(self, length: int, begin: bytes) -> None:
        """Receive the rest of a frame into memory of its own, once the client may have as much: it has to wait else."""
        transport, caller = self._out.transport, self.caller
        if transport is None or caller is None:
            return
        if not caller.bytes.take(length):
            self._filled = len(begin)
            self._buffer[: len(begin)] = begin
            transport.pause_reading()
            self._waits_for_memory = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._retry)
            return
        self._counted = length
        self._large = np.empty(length, np.uint8).data  # not zeroed, as every byte will be overwritten
        self._large[: len(begin)] = begin
        self._filled = len(begin)

    def _retry(self) -> None:
        """Look again whether the next frame may be received."""
        self._waits_for_memory = False
        self._resume()

    def _resume(self) -> None:
        """Go on with what was received, and read more."""
        if self._out.transport is not None and not self._is_closed:
            self._read_on()
            self.buffer_updated(0)

    def _give_counted(self) -> None:
        """The last large frame is not in use any more."""
        if self.caller is not None:
            self.caller.bytes.give(self._counted)
        self._counted = 0

    def _take_frame(self, number: int, kind: int, data: memoryview | bytes) -> None:
        call = self._open.get(number)
        if kind == CALL and not self.auth_context:
            self._open_call(number, memoryview(data), is_stream=False)
        elif kind == CANCEL:
            if call is not None:
                self._drop(call)
        elif self._greeting == GREETING or (call is not None and call.method.is_unary):
            raise _BrokenError
        elif kind == OPEN:
            self._open_call(number, memoryview(data), is_stream=True)
        elif kind == MESSAGE:
            if call is not None:
                call.receive(data)
        elif kind == END:
            if call is not None:
                call.end_of_requests()
        else:
            raise _BrokenError

    def _open_call(self, number: int, data: memoryview, *, is_stream: bool) -> None:
        if len(data) < HEAD.size or number in self._open or len(self._open) >= self._server.max_streams:
            raise _BrokenError
        left_s, path_bytes, metadata_bytes = HEAD.unpack_from(data)
        begins = HEAD.size + path_bytes + metadata_bytes
        if len(data) < begins or begins > _MAX_HEAD_BYTES or not 0.0 <= left_s < math.inf:
            raise _BrokenError
        key = bytes(data[HEAD.size - _LENGTHS_BYTES : begins])
        headers = self._headers.get(key) or self._read_headers(key, path_bytes)
        method = headers.method
        call = self._open[number] = RpcCall(
            self, number, headers, method or unknown_method(headers.path), left_s or None
        )
        refusal = self._server.admit(call)
        if self._is_draining:
            call.end(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        elif refusal:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        elif method is None or not _is_served(method, is_stream=is_stream):
            kind = "such" if is_stream else "unary"
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"no {kind} method {headers.path[:200]}")
        else:
            if not headers.is_authorised:
                self._server.authorise(call)
            if call.is_over:
                return
            if is_stream:
                call.start_stream()
            elif self._hold(call, len(data)):
                call.receive(data[begins:])

    def _hold(self, call: RpcCall, size: int) -> bool:
        """Count a request for as long as its call is in progress; ends the call where the client may not have it."""
        if self._counted:  # received into memory that is counted already
            call.wire_state, self._counted = self._counted, 0
        elif self.caller is not None and self.caller.bytes.take(size):
            call.wire_state = size
        else:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the requests in progress need too much memory")
            return False
        return True

    def _ended(self, call: RpcCall) -> None:
        """A call is over: its request is not used any more."""
        if call.wire_state is not None and self.caller is not None:
            self.caller.bytes.give(call.wire_state)
            call.wire_state = None
        self._server.ended(call)

    def _read_headers(self, key: bytes, path_bytes: int) -> CallHeaders:
        """Parse and cache a call's head without its deadline. `key`: the two lengths, the path and the metadata."""
        path = key[_LENGTHS_BYTES : _LENGTHS_BYTES + path_bytes].decode("latin-1")
        headers = CallHeaders(path, _metadata(key[_LENGTHS_BYTES + path_bytes :]), None)
        headers.method = self._server.methods.get(path)
        if headers.method is not None:
            if len(self._headers) >= _CACHED_HEADERS:
                self._headers.clear()
            self._headers[key] = headers
        return headers

    def _drop(self, call: RpcCall) -> None:
        self._open.pop(call.number, None)
        if not call.is_over:
            self._ended(call)
            call.cancel()

    # -- for calls ----------------------------------------------------------------------------------------------------

    def send(self, call: RpcCall, message: bytes) -> None:
        """Send a response; the response of a unary call also ends the call."""
        if not call.method.is_unary:
            self._write(FRAME.pack(len(message) + AFTER_LENGTH, call.number, MESSAGE), message)
            transport = self._out.transport
            if transport is not None and transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
                transport.abort()
        elif self._open.pop(call.number, None) is not None:
            self._ended(call)
            self._write(FRAME.pack(len(message) + AFTER_LENGTH, call.number, REPLY), message)

    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        """Send the trailing status."""
        if self._open.pop(call.number, None) is None:
            return
        self._ended(call)
        if status is grpc.StatusCode.OK:
            if not call.method.is_unary:
                self._write(FRAME.pack(AFTER_LENGTH, call.number, END))
        else:
            reason = STATUS.pack(status.value[0]) + details.encode(errors="replace")[:8000]
            self._write(FRAME.pack(len(reason) + AFTER_LENGTH, call.number, FAILED) + reason)

    def consumed(self, call: RpcCall, size: int) -> None:
        """Nothing to do: streams have no flow control of their own here."""

    def received_bytes(self, call: RpcCall) -> int:
        """Requests arrive with their calls here."""
        return 0

    async def writable(self, call: RpcCall) -> None:
        """Return at once: `send` limits the unsent bytes itself."""

    def _write(self, *parts: bytes | memoryview) -> None:
        if self._out.is_held or self._open:
            self._out.write(*parts)
        else:  # no other answer can follow in this turn
            self._out.write_through(*parts)

    # -- the end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """The client of a stream moves to a new connection in time by itself."""
        self.drain()

    def drain(self) -> None:
        """Accept no further call; the calls in progress go on."""
        self._is_draining = True

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """End the calls, and the connection once all answers have left."""
        self._is_closed = True
        for call in list(self._open.values()):
            call.end(grpc.StatusCode.UNAVAILABLE, reason)
        self._out.flush()
        if self._out.transport is not None:
            self._out.transport.close()

    def expire(self) -> None:
        """End a connection without a call. A client whose call crosses it makes it again."""
        self.close("the connection was idle")

    def abort(self) -> None:
        """End the connection at once, and its calls."""
        if self._out.transport is not None:
            self._out.transport.abort()


def _is_served(method: Method, *, is_stream: bool) -> bool:
    """True if this protocol serves the method: it is unary, or a stream with a raw handler."""
    if is_stream:
        return method.raw_stream is not None
    return method.is_unary and not method.handler.response_streaming


def _metadata(text: bytes) -> Metadata:
    try:
        items = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise _BrokenError from error
    if not isinstance(items, dict) or not all(isinstance(value, str) for value in items.values()):
        raise _BrokenError
    return tuple(items.items())
