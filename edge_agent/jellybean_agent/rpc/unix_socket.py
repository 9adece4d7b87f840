"""The fast lane: calls over a Unix socket that clients on the same host may use instead of HTTP/2.

Behind it are the same methods, policy, limits and deadlines. A client that greets a Unix socket of ours with a greeting
is greeted back, and speaks frames from then on: their length, a call's number, a kind, and by kind a request's head and
message, a response, or how it failed. After the second greeting there are streams too, of methods that take them
without a task: what is not read at once has no room here. Calls of one connection are under way side by side. Who is
not this user is not let in.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from typing import cast

import grpc
import numpy as np

from jellybean_agent.rpc.calls import Calls, Head, Metadata, Method, RpcCall, no_method
from jellybean_agent.rpc.gathering import Gathering

GREETING, WITH_STREAMS = b"JELLYBEAN LANE 1\n", b"JELLYBEAN LANE 2\n"
FRAME = struct.Struct("<IIB")  # length of what follows the length, the call's number, kind
CALL, CANCEL, REPLY, FAILED = range(4)
OPEN, MESSAGE, END = range(4, 7)  # of streams: a head, a message (both ways), no further one: from the server, OK
HEAD = struct.Struct("<dHH")  # seconds left (0: no deadline), bytes of the method's path, and of the metadata (JSON)
_LENGTHS_BYTES = 4  # of HEAD, at its end
STATUS = struct.Struct("<B")  # a FAILED call's; its reason follows
_AFTER_LENGTH = FRAME.size - 4
_MOST_HEAD_BYTES = 2**14
SOCKET_BYTES = 2**20  # that may lie in a socket, as far as the system lets: a large tensor then leaves at once
_UNSENT_BYTES = 2**20
_MOST_UNSENT_BYTES = 2**22  # of streams, to a client that does not read: it loses its connection
_READ_BYTES = 2**16
_KEPT = 64  # heads that are remembered
_CREDENTIALS = struct.Struct("=iII")  # of SO_PEERCRED: pid, uid, gid


class _BrokenError(Exception):
    """What came is no frame: the connection ends."""


class Lane(Gathering, asyncio.BufferedProtocol):
    """A client's connection."""

    def __init__(self, calls: Calls, greeting: bytes = GREETING) -> None:
        super().__init__()
        self._calls, self._greeting = calls, greeting
        self.peer = "unix:"
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._filled = 0
        self._large: memoryview | None = None  # a frame larger than the buffer, into which the rest of it is read
        self._open: dict[int, RpcCall] = {}
        self._heads: dict[bytes, Head] = {}
        self._is_leaving = self._is_closed = False

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._transport.write(self._greeting)
        self._calls.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for call in list(self._open.values()):
            self._drop(call)
        self._calls.closed(self)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._buffer if self._large is None else self._large
        return target[self._filled :]

    def buffer_updated(self, size: int) -> None:
        if self._is_closed:
            return
        self._filled += size
        self._is_flushing = True  # at the end of this
        try:
            self._parse()
        except _BrokenError:
            self.close()
        finally:
            self._is_flushing = False
            self._flush()

    def feed(self, data: bytes) -> None:
        """What came with the greeting."""
        while data and not self._is_closed:
            room = self.get_buffer(0)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)

    # -- frames -------------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        if self._large is not None:
            if self._filled == len(self._large):
                whole, self._large, self._filled = self._large, None, 0
                _, number, kind = FRAME.unpack_from(whole)
                self._frame(number, kind, whole[FRAME.size :])
            return
        at, filled, buffer = 0, self._filled, self._buffer
        while filled - at >= FRAME.size:
            size, number, kind = FRAME.unpack_from(buffer, at)
            length = 4 + size
            if length < FRAME.size or length > self._calls.most_message_bytes + _MOST_HEAD_BYTES:
                raise _BrokenError
            if length > filled - at:
                if length > len(buffer):
                    self._large = np.empty(length, np.uint8).data  # not zeroed: all of it is read into
                    self._large[: filled - at] = buffer[at:filled]
                    self._filled = filled - at
                    return
                break
            self._frame(number, kind, bytes(buffer[at + FRAME.size : at + length]))
            at += length
        if at:
            left = bytes(buffer[at:filled])
            buffer[: len(left)] = left
            self._filled = len(left)

    def _frame(self, number: int, kind: int, data: memoryview | bytes) -> None:
        call = self._open.get(number)
        if kind == CALL:
            self._began(number, memoryview(data), is_stream=False)
        elif kind == CANCEL:
            if call is not None:
                self._drop(call)
        elif self._greeting == GREETING or (call is not None and call.method.is_unary):
            raise _BrokenError
        elif kind == OPEN:
            self._began(number, memoryview(data), is_stream=True)
        elif kind == MESSAGE:
            if call is not None:
                call.received(data)
        elif kind == END:
            if call is not None:
                call.no_more()
        else:
            raise _BrokenError

    def _began(self, number: int, data: memoryview, *, is_stream: bool) -> None:
        if len(data) < HEAD.size or number in self._open or len(self._open) >= self._calls.most_streams:
            raise _BrokenError
        left_s, path_bytes, metadata_bytes = HEAD.unpack_from(data)
        begins = HEAD.size + path_bytes + metadata_bytes
        if len(data) < begins or begins > _MOST_HEAD_BYTES or not 0.0 <= left_s < math.inf:
            raise _BrokenError
        told = bytes(data[HEAD.size - _LENGTHS_BYTES : begins])
        head = self._heads.get(told) or self._read_head(told, path_bytes)
        call = self._open[number] = RpcCall(self, number, head, head.method or no_method(head.path), left_s or None)
        self._calls.began(call)
        why = self._calls.refusal()
        if self._is_leaving:
            call.end(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        elif why:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        elif head.method is None or not _serves(head.method, is_stream=is_stream):
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"no {'such' if is_stream else 'unary'} method {head.path[:200]}")
        else:
            if not head.is_allowed:
                self._calls.allow(call)
            if call.is_over:
                return
            if is_stream:
                call.begin()
            else:
                call.received(data[begins:])

    def _read_head(self, told: bytes, path_bytes: int) -> Head:
        """`told`: what calls say again, the lengths, the path and the metadata; each has a deadline of its own."""
        path = told[_LENGTHS_BYTES : _LENGTHS_BYTES + path_bytes].decode("latin-1")
        head = Head(path, _metadata(told[_LENGTHS_BYTES + path_bytes :]), None)
        head.method = self._calls.methods.get(path)
        if head.method is not None:
            if len(self._heads) >= _KEPT:
                self._heads.clear()
            self._heads[told] = head
        return head

    def _drop(self, call: RpcCall) -> None:
        self._open.pop(call.number, None)
        if not call.is_over:
            self._calls.ended(call)
            call.cancel()

    # -- of calls -----------------------------------------------------------------------------------------------------

    def send(self, call: RpcCall, message: bytes) -> None:
        if not call.method.is_unary:
            self._write(FRAME.pack(len(message) + _AFTER_LENGTH, call.number, MESSAGE), message)
            if self._transport is not None and self._transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
                self._transport.abort()
        elif self._open.pop(call.number, None) is not None:  # a unary call's one response is its end
            self._calls.ended(call)
            self._write(FRAME.pack(len(message) + _AFTER_LENGTH, call.number, REPLY), message)

    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        if self._open.pop(call.number, None) is None:
            return
        self._calls.ended(call)
        if status is grpc.StatusCode.OK:
            if not call.method.is_unary:
                self._write(FRAME.pack(_AFTER_LENGTH, call.number, END))
        else:
            told = STATUS.pack(status.value[0]) + details.encode(errors="replace")[:8000]
            self._write(FRAME.pack(len(told) + _AFTER_LENGTH, call.number, FAILED) + told)

    def taken(self, call: RpcCall, size: int) -> None:
        pass

    async def room(self, call: RpcCall) -> None:
        pass

    def _write(self, *parts: bytes | memoryview) -> None:
        if self._is_flushing or self._open:
            super()._write(*parts)
        else:  # no other answer can follow at once
            self._out += parts
            self._flush()

    # -- the end ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Take no further call; those under way go on."""
        self._is_leaving = True

    def close(self) -> None:
        """End the calls and the connection, once what was said has left."""
        self._is_closed = True
        for call in list(self._open.values()):
            call.end(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        self._flush()
        if self._transport is not None:
            self._transport.close()


def peer_uid(connection: socket.socket) -> int:
    """Who is at the other end of a Unix socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def _serves(method: Method, *, is_stream: bool) -> bool:
    if is_stream:
        return method.raw_stream is not None
    return method.is_unary and not method.handler.response_streaming


def _metadata(told: bytes) -> Metadata:
    try:
        found = json.loads(told) if told else {}
    except (ValueError, RecursionError) as error:
        raise _BrokenError from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _BrokenError
    return tuple(found.items())
