"""Reassembles gRPC messages from the DATA frames of an HTTP/2 stream, and hands them to their calls."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np

from jellybean_agent.admission.inflation import (
    COMPRESSIONS,
    INLINE_BYTES,
    InflationError,
    inflate,
    inflate_small,
)
from jellybean_agent.rpc.calls import CallServer, RpcCall
from jellybean_agent.rpc.http2_stream import DIRECT_BYTES, MESSAGE_BYTES, Stream

_PREFIX_BYTES = 5  # of a gRPC message: whether it is compressed, and its size


class RequestAssembler:
    """Reassembles messages of up to the server's `max_message_bytes`; a larger one ends its call."""

    __slots__ = ("_server",)

    def __init__(self, server: CallServer) -> None:
        self._server = server

    def direct_buffer(self, stream: Stream | None, left: int) -> memoryview | None:
        """Memory into which the next bytes of a large message can be received; None for a small message.

        `left`: bytes left in the DATA frame being received.
        """
        if stream is None or stream.need - stream.got <= DIRECT_BYTES or stream.charged < stream.need:
            return None
        return _whole(stream)[stream.got : stream.got + min(left, stream.need - stream.got)]

    def received_directly(self, stream: Stream, size: int) -> None:
        """Bytes of a large message have been received into its buffer."""
        stream.got += size
        if stream.got == stream.need and stream.whole is not None and stream.call is not None:
            message, stream.whole = stream.whole, None
            stream.got, stream.need = 0, -1
            self._complete(stream.call, stream, message)

    def receive(self, stream: Stream, data: memoryview) -> memoryview:
        """Consume bytes of at most one message; returns the rest of `data`, which belongs to the next message."""
        call = stream.call
        if call is None:
            return data[:0]
        if stream.need < 0:
            if stream.got or len(data) < _PREFIX_BYTES:
                taken = min(len(data), _PREFIX_BYTES - stream.got)
                stream.part += data[:taken]
                stream.got += taken
                if stream.got < _PREFIX_BYTES:
                    return data[:0]
                prefix = memoryview(bytes(stream.part))
                stream.part.clear()
                stream.got = 0
            else:
                prefix, taken = data[:_PREFIX_BYTES], _PREFIX_BYTES
            data = data[taken:]
            need = int.from_bytes(prefix[1:_PREFIX_BYTES], "big")
            if not self._accepts(call, prefix[0], need):
                return data[:0]
            stream.is_compressed, stream.need = bool(prefix[0]), need
        wanted = stream.need - stream.got
        if DIRECT_BYTES < stream.need <= stream.charged:
            piece = data[:wanted]
            _whole(stream)[stream.got : stream.got + len(piece)] = piece
            self.received_directly(stream, len(piece))
            return data[wanted:]
        if len(data) < wanted:
            stream.part += data
            stream.got += len(data)
            return data[:0]
        message = data[:wanted]
        if stream.part:
            stream.part += message
            message, stream.part = memoryview(stream.part), bytearray()
        stream.got, stream.need = 0, -1
        self._complete(call, stream, message)
        return data[wanted:]

    def _accepts(self, call: RpcCall, flag: int, need: int) -> bool:
        """End a call whose next message has an unknown flag, or is too large."""
        limit = self._server.max_message_bytes
        if flag > 1:
            call.end(grpc.StatusCode.INTERNAL, f"a message has the flag {flag}: only 0 and 1 are known")
        elif need > limit:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message of {need} bytes is larger than max ({limit})")
        else:
            return True
        return False

    def hold(self, stream: Stream) -> bool:
        """Count what is kept of a client's request; ends the call where that is more than it may have."""
        call = stream.call
        if call is None:
            return False
        caller = call.connection.caller
        if caller is not None and stream.hold(caller.bytes):
            return True
        if caller is not None and self._server.make_room_for_bytes(call) and stream.hold(caller.bytes):
            return True
        reason = "the requests and answers that this server keeps, of this client or of all, need too much memory: wait"
        call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{reason} for answers before the next request")
        return False

    def end(self, call: RpcCall, stream: Stream) -> None:
        """The client has half-closed the stream, after complete messages."""
        if stream.inflation is not None:
            return  # which ends the stream behind its messages
        if not call.method.is_unary:
            call.end_of_requests()
        elif stream.request is None:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "a call without a request")
        else:
            request, stream.request = stream.request, None
            self._server.has_request(call)
            if stream.is_compressed:
                self._inflate(call, stream, request)
            else:
                self._receive(call, stream, request)

    def _complete(self, call: RpcCall, stream: Stream, message: memoryview) -> None:
        """Pass a complete message to its call; a unary call's is kept until the client half-closes the stream."""
        stream.messages += 1
        if stream.is_compressed and call.headers.compression not in COMPRESSIONS:
            call.end(grpc.StatusCode.INTERNAL, "a message is compressed, and no grpc-encoding says how")
        elif call.method.is_unary:
            if stream.messages > 1:
                call.end(grpc.StatusCode.INVALID_ARGUMENT, "a second request in a call that takes one")
            else:
                stream.request = message
        elif stream.inflation is not None:  # the order of messages is kept
            stream.queued += len(message) + MESSAGE_BYTES
            stream.backlog.append((bytes(message), stream.is_compressed))
        elif stream.is_compressed:
            self._inflate(call, stream, message)
        else:
            self._receive(call, stream, message)

    def _receive(self, call: RpcCall, stream: Stream, message: memoryview | bytearray) -> None:
        """Hand a message to its call, which uses it until it says so."""
        caller = call.connection.caller
        if call.method.is_unary and not stream.charged and caller is not None:  # what most calls are, in few steps
            size = stream.queued + len(message) + MESSAGE_BYTES
            if caller.bytes.take(size):
                stream.queued = stream.charged = size
                call.receive(memoryview(message))
                return
        stream.queued += len(message) + MESSAGE_BYTES
        if not call.method.is_unary or self.hold(stream):
            call.receive(memoryview(message))

    # -- compressed messages ------------------------------------------------------------------------------------------

    def _inflate(self, call: RpcCall, stream: Stream, message: memoryview) -> None:
        """Decompress a message and pass it on: a small one at once, a large one by a task."""
        limit = self._server.max_message_bytes
        try:
            content = inflate_small(message, call.headers.compression, limit)
        except InflationError:
            self._refuse_damaged(call)
            return
        if content is None:
            stream.queued += len(message) + MESSAGE_BYTES
            if len(message) <= INLINE_BYTES:
                message = memoryview(bytes(message))  # without the read buffer, which may be larger
            stream.backlog.append((message, True))
            stream.inflation = asyncio.get_running_loop().create_task(self._inflate_backlog(call, stream))
        elif len(content) > limit:
            self._refuse_large(call)
        else:
            self._receive(call, stream, memoryview(content))

    async def _inflate_backlog(self, call: RpcCall, stream: Stream) -> None:
        """Decompress the messages of a stream, and pass them on in order."""
        try:
            while stream.backlog and not call.is_over:
                message, is_compressed = stream.backlog.popleft()
                content: memoryview | bytes | None = message
                if is_compressed:
                    content = await self._inflated(call, stream, message)
                if content is not None:
                    stream.queued -= len(message) + MESSAGE_BYTES
                    self._receive(call, stream, memoryview(content))
                    self.hold(stream)
            stream.inflation = None
            if stream.is_half_closed and not (call.is_over or call.method.is_unary):
                call.end_of_requests()
        except Exception as error:  # noqa: BLE001 (a boundary: only this call ends)
            call.fail_unexpectedly(error)

    async def _inflated(self, call: RpcCall, stream: Stream, message: memoryview | bytes) -> memoryview | None:
        """The content of a message; None where the call was ended, as it is damaged or too large."""
        counted, caller = 0, call.connection.caller

        def may_grow(size: int) -> bool:
            nonlocal counted
            stream.queued += size - counted
            counted = size
            return self.hold(stream)

        client = "" if caller is None else caller.bytes.peer
        limit = self._server.max_message_bytes
        try:
            content = await inflate(message, call.headers.compression, client, limit, may_grow)
        except InflationError:
            self._refuse_damaged(call)
            return None
        stream.queued -= counted
        if content is None:
            self._refuse_large(call)
        return content

    def _refuse_large(self, call: RpcCall) -> None:
        limit = self._server.max_message_bytes
        call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message is larger than max ({limit}) when decompressed")

    def _refuse_damaged(self, call: RpcCall) -> None:
        call.end(grpc.StatusCode.INTERNAL, f"a message is no {call.headers.compression}")


def _whole(stream: Stream) -> memoryview:
    """The memory of a large message that is counted. Made in one piece: what grows is copied, for milliseconds."""
    if stream.whole is None:
        stream.whole = np.empty(stream.need, np.uint8).data  # not zeroed, as every byte will be overwritten
        stream.whole[: stream.got] = stream.part
        stream.part.clear()
    return stream.whole
