"""Sends the responses of an HTTP/2 connection's calls, as far as the client's flow control allows.

The bytes that flow control holds back are bounded.
"""

from __future__ import annotations

import asyncio

import grpc

from jellybean_agent.rpc.calls import NO_AUTH_CONTEXT, Caller, CallServer, RpcCall
from jellybean_agent.rpc.frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    HEADERS,
    LARGEST_WINDOW,
    NO_ERROR,
    OK_TRAILERS,
    PROTOCOL_ERROR,
    RESET,
    RESPONSE_HEADERS,
    WINDOW_BYTES,
    BrokenError,
    StreamError,
    frame,
    frame_head,
    trailers,
    window_update,
)
from jellybean_agent.rpc.http2_flood import FloodGuard
from jellybean_agent.rpc.http2_stream import Stream, StreamTable
from jellybean_agent.rpc.write_buffer import WriteBuffer

_BURST_BYTES = 2**18  # after which the transport is asked whether it is full
_SMALL_BYTES = 2**12  # of a message that is copied behind its prefix
_PART_BYTES = 128  # what a part that waits takes besides its bytes
_WRITABLE_BYTES = 2**18  # unsent bytes of one stream above which its handler waits


class ResponseSender:
    """The `CallConnection` of an HTTP/2 connection's calls: their responses, trailers and flow control."""

    def __init__(self, server: CallServer, streams: StreamTable, out: WriteBuffer, guard: FloodGuard) -> None:
        self.peer = ""
        self.auth_context = NO_AUTH_CONTEXT
        self.caller: Caller | None = None
        self.frame_bytes = 2**14  # largest frame that the client accepts
        self.is_paused = False  # True while the transport's write buffer is full
        self.data_bytes = 0  # of DATA that the client has sent
        self._buffered_bytes = 0  # of the transport's write buffer, while it is full
        self._server, self._table, self._out, self._guard = server, streams, out, guard
        self._streams = streams.by_number
        self._loop = asyncio.get_running_loop()
        self._blocked: dict[int, Stream] = {}  # streams with unsent bytes
        self._window = 2**16 - 1  # send window of the connection in bytes
        self._unsent_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that flow control holds back."""
        return self._unsent_bytes

    # -- for calls ----------------------------------------------------------------------------------------------------

    def send(self, call: RpcCall, message: bytes) -> None:
        """Send a response message. Ends the call when the client leaves too many answers unread."""
        stream: Stream = call.wire_state
        if stream.call is None:
            return
        size = len(message) + 5
        self._guard.message_sent(size)
        if not stream.has_headers:
            stream.has_headers = True
            self._out.write(frame_head(HEADERS, END_HEADERS, call.number, len(RESPONSE_HEADERS)) + RESPONSE_HEADERS)
        if not stream.unsent and not self.is_paused and size <= min(self.frame_bytes, stream.window, self._window):
            stream.window -= size
            self._window -= size
            prefix = b"\0" + len(message).to_bytes(4, "big")
            self._out.write(frame_head(DATA, 0, call.number, size) + prefix + message)
            return
        is_small = size < _SMALL_BYTES
        kept = size + _PART_BYTES * (1 if is_small else 2)
        is_much = self._unsent_bytes and self._unsent_bytes + size > 2 * self._server.max_message_bytes
        if is_much or self.caller is None or not self.caller.bytes.take(kept):
            here = f"{self._unsent_bytes} bytes of answers lie unread on this connection: read them first"
            reason = here if is_much else "too many bytes of answers lie unread at this server: read yours first"
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            return
        self._unsent_bytes += size
        prefix = b"\0" + len(message).to_bytes(4, "big")
        stream.unsent += (memoryview(prefix + message),) if is_small else (memoryview(prefix), memoryview(message))
        self._blocked[call.number] = stream
        self._send_unsent(call.number, stream)

    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        """Send the trailing status, after the unsent bytes of the call."""
        stream: Stream = call.wire_state
        if stream.call is None:
            return
        block = OK_TRAILERS if status is grpc.StatusCode.OK else trailers(status, details)
        if not stream.has_headers:
            block = RESPONSE_HEADERS + block
        last = frame_head(HEADERS, END_HEADERS | END_STREAM, call.number, len(block)) + block
        if stream.unsent:  # the call is in progress until all bytes are sent, or its deadline passes
            stream.last = last
            if call.until_s is not None:
                stream.timer = self._loop.call_at(call.until_s, self._drop_unread, call.number, stream)
        else:
            self._close(call.number, stream, last)

    def consumed(self, call: RpcCall, size: int) -> None:
        """The handler has consumed `size` bytes: send a WINDOW_UPDATE once half of the stream's window is used."""
        stream: Stream = call.wire_state
        stream.consumed(size, None if self.caller is None else self.caller.bytes)
        if stream.unread > WINDOW_BYTES // 2 and stream.call is not None and not stream.is_half_closed:
            self._guard.idle_frames = 0
            self.give_credit(call.number, stream)

    def received_bytes(self, call: RpcCall) -> int:
        """Bytes of requests that have arrived: a slow connection may carry many."""
        return self.data_bytes

    async def writable(self, call: RpcCall) -> None:
        """Wait until most of the call's response bytes have left."""
        stream: Stream = call.wire_state
        while stream.call is not None and sum(map(len, stream.unsent)) > _WRITABLE_BYTES:
            stream.waiter = self._loop.create_future()
            await stream.waiter

    # -- for the connection -------------------------------------------------------------------------------------------

    def give_credit(self, number: int, stream: Stream) -> None:
        """Send a WINDOW_UPDATE for all bytes of the stream received since the last one."""
        stream.credit += stream.unread
        self._out.write(window_update(number, stream.unread))
        stream.unread = 0

    def window_grown(self, number: int, more: int) -> None:
        """The client has sent a WINDOW_UPDATE, for the connection (number 0) or a stream."""
        if number == 0:
            self._window += more
            if more == 0:
                raise BrokenError(PROTOCOL_ERROR, "a WINDOW_UPDATE of nothing")
            if self._window > LARGEST_WINDOW:
                raise BrokenError(FLOW, "a connection's window out of bounds")
            before = self._window
            self.send_all_unsent()
            if self._window == before:
                self._guard.count_idle(len(self._blocked))
            return
        stream = self._streams.get(number)
        if stream is None:
            self._guard.count_idle()
            return
        if more == 0:
            raise StreamError(PROTOCOL_ERROR)
        stream.widen(more)
        if number in self._blocked:
            self._send_unsent(number, stream)
        else:
            self._guard.count_idle()

    def send_all_unsent(self) -> None:
        """Send unsent bytes of all streams, as far as the windows allow."""
        for number, stream in list(self._blocked.items()):
            if self._window <= 0 or self.is_paused:
                return
            self._send_unsent(number, stream)

    def drop(self, stream: Stream) -> None:
        """Release a stream that was removed from the table; cancels its call."""
        call, stream.call = stream.call, None
        if call is not None:
            self._blocked.pop(call.number, None)
            self._server.ended(call)
            if not call.is_over:
                call.cancel()
        if stream.timer is not None:
            stream.timer.cancel()
        self._sent(sum(map(len, stream.unsent)), len(stream.unsent))
        stream.unsent.clear()
        stream.release(None if self.caller is None else self.caller.bytes)
        if stream.waiter is not None and not stream.waiter.done():
            stream.waiter.set_result(None)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_unsent(self, number: int, stream: Stream) -> None:
        """Send unsent bytes of a stream as far as the windows allow, in frames of at most `frame_bytes`."""
        burst = 0
        while stream.unsent and not self.is_paused:
            room = min(self.frame_bytes, stream.window, self._window)
            if room <= 0:
                break
            parts, size = self._next_parts(stream, room)
            stream.window -= size
            self._window -= size
            self._out.write(frame_head(DATA, 0, number, size), *parts)
            burst += size
            if burst >= _BURST_BYTES:  # so that the transport says when it is full
                self._out.flush()
                burst = 0
        if stream.waiter is not None and not stream.waiter.done() and sum(map(len, stream.unsent)) <= _WRITABLE_BYTES:
            stream.waiter.set_result(None)
        if not stream.unsent:
            self._blocked.pop(number, None)
            if stream.last is not None:
                self._close(number, stream, stream.last)

    def _next_parts(self, stream: Stream, room: int) -> tuple[list[memoryview], int]:
        """Take at most `room` unsent bytes of a stream; returns them with their number."""
        parts: list[memoryview] = []
        size = ended = 0
        while stream.unsent and size < room:
            part = stream.unsent.popleft()
            if len(part) > room - size:
                stream.unsent.appendleft(part[room - size :])
                part = part[: room - size]
            else:
                ended += 1
            parts.append(part)
            size += len(part)
        self._sent(size, ended)
        return parts, size

    def pause(self, buffered_bytes: int) -> None:
        """The transport's write buffer is full: what is in it counts until it is read."""
        self.is_paused = True
        if self.caller is not None:
            self._buffered_bytes += buffered_bytes
            self.caller.bytes.add(buffered_bytes)

    def resume(self) -> None:
        """The transport's write buffer is read, or gone."""
        self.is_paused = False
        if self.caller is not None:
            self.caller.bytes.give(self._buffered_bytes)
        self._buffered_bytes = 0

    def _sent(self, size: int, parts: int) -> None:
        """So many bytes and parts are not kept any more."""
        self._unsent_bytes -= size
        if size and self.caller is not None:
            self.caller.bytes.give(size + _PART_BYTES * parts)

    def _close(self, number: int, stream: Stream, last: bytes) -> None:
        """Send the trailers and release the stream."""
        if not stream.is_half_closed:
            last += frame(RESET, 0, number, NO_ERROR.to_bytes(4, "big"))  # tell the client to stop sending the request
            self._table.closed_early(number)
        else:
            self._guard.call_answered()
        self._streams.pop(number, None)
        self.drop(stream)
        self._out.write(last)
        if not self._streams and not self._out.is_held:  # no other answer can follow in this turn of the event loop
            self._out.flush()

    def _drop_unread(self, number: int, stream: Stream) -> None:
        """Reset a call whose client has not read the answer by the deadline."""
        if number in self._streams:
            self.reset(number, CANCEL)

    def reset(self, number: int, code: int) -> None:
        """Reset a stream with an HTTP/2 error code, and cancel its call; others go on."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self.drop(stream)
        self._table.closed_early(number)
        self._out.write(frame(RESET, 0, number, code.to_bytes(4, "big")))

    def refuse(self, number: int, response: bytes, *, has_ended: bool) -> None:
        """Answer a request that opens no call by a header block. `has_ended`: the client sends nothing more."""
        last = frame(HEADERS, END_HEADERS | END_STREAM, number, response)
        if not has_ended:
            last += frame(RESET, 0, number, NO_ERROR.to_bytes(4, "big"))
            self._table.closed_early(number)
        self._out.write(last)
