"""Reassembles gRPC messages from the DATA frames of an HTTP/2 stream, and hands them to their calls."""

from __future__ import annotations

import grpc
import numpy as np

from jellybean_agent.rpc.calls import CallServer, RpcCall
from jellybean_agent.rpc.frames import decompress
from jellybean_agent.rpc.http2_stream import DIRECT_BYTES, Stream

_PREFIX_BYTES = 5  # of a gRPC message: whether it is compressed, and its size
_MAX_DIRECT_BYTES = 2**23  # largest message that is received into a buffer of its own


class RequestAssembler:
    """Reassembles messages of up to the server's `max_message_bytes`; a larger one ends its call."""

    __slots__ = ("_server",)

    def __init__(self, server: CallServer) -> None:
        self._server = server

    def direct_buffer(self, stream: Stream | None, left: int) -> memoryview | None:
        """Memory into which the next bytes of a large message can be received; None for a small message.

        `left`: bytes left in the DATA frame being received.
        """
        if stream is None or stream.need - stream.got <= DIRECT_BYTES or stream.need > _MAX_DIRECT_BYTES:
            return None
        if stream.whole is None:
            stream.whole = np.empty(stream.need, np.uint8).data  # not zeroed, as every byte will be overwritten
            stream.whole[: stream.got] = stream.part
            stream.part.clear()
        return stream.whole[stream.got : stream.got + min(left, stream.need - stream.got)]

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
        if stream.whole is not None:
            piece = data[:wanted]
            stream.whole[stream.got : stream.got + len(piece)] = piece
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

    def _complete(self, call: RpcCall, stream: Stream, message: memoryview) -> None:
        """Pass a complete message to its call; a unary call's is kept until the client half-closes the stream."""
        if stream.is_compressed:
            compression = call.headers.compression
            plain = decompress(message, compression, self._server.max_message_bytes)
            if plain is None:
                call.end(grpc.StatusCode.INTERNAL, f"a message that is no {compression}, or larger than max")
                return
            message = plain
        stream.messages += 1
        if not call.method.is_unary:
            call.receive(message)
        elif stream.messages > 1:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "a second request in a call that takes one")
        else:
            stream.request = message
