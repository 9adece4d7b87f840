"""What comes of gRPC's messages in the DATA of an HTTP/2 connection, in pieces of any size."""

from __future__ import annotations

import grpc

from jellybean_agent.rpc.calls import RpcCall
from jellybean_agent.rpc.frames import PROTOCOL_ERROR, BrokenError, unpacked
from jellybean_agent.rpc.http2_out import Outgoing
from jellybean_agent.rpc.http2_stream import Stream


class Incoming(Outgoing):
    """Messages put together, for calls to receive; a message may be refused at once, hence the sending half."""

    def _filled(self, stream: Stream, size: int) -> None:
        """More of a large message is where it belongs."""
        stream.got += size
        if stream.got == stream.need and stream.whole is not None and stream.call is not None:
            message, stream.whole = stream.whole, None
            stream.got, stream.need = 0, -1
            self._whole(stream.call, stream, message)

    def _message(self, stream: Stream, part: memoryview) -> memoryview:
        """Take a part of a stream in; what is left of it for the next message."""
        call = stream.call
        if call is None:
            return part[:0]
        if stream.need < 0:
            if stream.got or len(part) < 5:
                taken = min(len(part), 5 - stream.got)
                stream.part += part[:taken]
                stream.got += taken
                if stream.got < 5:
                    return part[:0]
                prefix = memoryview(bytes(stream.part))
                stream.part.clear()
                stream.got = 0
            else:
                prefix, taken = part[:5], 5
            part = part[taken:]
            need = int.from_bytes(prefix[1:5], "big")
            if prefix[0] > 1:
                raise BrokenError(PROTOCOL_ERROR, "no gRPC message")
            if need > self._calls.most_message_bytes:
                most = self._calls.most_message_bytes
                call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message of {need} bytes is larger than max ({most})")
                return part[:0]
            stream.packed, stream.need = bool(prefix[0]), need
        wanted = stream.need - stream.got
        if stream.whole is not None:
            piece = part[:wanted]
            stream.whole[stream.got : stream.got + len(piece)] = piece
            self._filled(stream, len(piece))
            return part[wanted:]
        if len(part) < wanted:
            stream.part += part
            stream.got += len(part)
            return part[:0]
        message = part[:wanted]
        if stream.part:
            stream.part += message
            message, stream.part = memoryview(stream.part), bytearray()
        stream.got, stream.need = 0, -1
        self._whole(call, stream, message)
        return part[wanted:]

    def _whole(self, call: RpcCall, stream: Stream, message: memoryview) -> None:
        if stream.packed:
            found = unpacked(message, call.head.encoding, self._calls.most_message_bytes)
            if found is None:
                call.end(grpc.StatusCode.INTERNAL, f"a message that is no {call.head.encoding}, or larger than max")
                return
            message = found
        stream.messages += 1
        if not call.method.is_unary:
            call.received(message)
        elif stream.messages > 1:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "a second request in a call that takes one")
        else:
            stream.request = message
