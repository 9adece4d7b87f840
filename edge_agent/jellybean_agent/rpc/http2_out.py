"""What leaves an HTTP/2 connection: answers as far as the client's windows let them, and how calls end.

What lies unsent is bounded, and all that is said in one turn of the event loop leaves together.
"""

from __future__ import annotations

import grpc

from jellybean_agent.rpc.calls import Calls, RpcCall
from jellybean_agent.rpc.frames import (
    BASE,
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NO_ERROR,
    OK,
    RESET,
    WINDOW_BYTES,
    frame,
    head_of,
    trailers,
    window_of,
)
from jellybean_agent.rpc.gathering import Gathering
from jellybean_agent.rpc.http2_stream import Stream

_ROOM_BYTES = 2**18  # of one stream: above it writers wait


class Outgoing(Gathering):
    """The sending half of a connection."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls
        self._streams: dict[int, Stream] = {}
        self._blocked: dict[int, Stream] = {}  # with something that the client's windows do not let leave
        self._window, self._frame_bytes = 2**16 - 1, 2**14  # of the connection; as large as the client takes
        self._idle_frames = 0  # that asked for nothing, since a call was answered
        self._resets = 0.0  # of calls under way, less what time and answers allow
        self._unsent_bytes = 0
        self._is_paused = False  # the client reads slower than we write
        self._is_parsing = False

    def send(self, call: RpcCall, message: bytes) -> None:
        stream: Stream = call.state
        if stream.call is None:
            return
        size = len(message) + 5
        if self._unsent_bytes and self._unsent_bytes + size > 2 * self._calls.most_message_bytes:
            told = f"{self._unsent_bytes} bytes of answers lie unread on this connection: read them first"
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, told)
            return
        self._idle_frames -= min(self._idle_frames, 2 + 2 * (size >> 14))  # which the client's windows follow
        if not stream.has_headers:
            stream.has_headers = True
            self._write(head_of(HEADERS, END_HEADERS, call.number, len(BASE)) + BASE)
        if not stream.unsent and not self._is_paused and size <= min(self._frame_bytes, stream.window, self._window):
            stream.window -= size
            self._window -= size
            self._write(head_of(DATA, 0, call.number, size) + b"\0" + len(message).to_bytes(4, "big") + message)
            return
        self._unsent_bytes += size
        stream.unsent += (memoryview(b"\0" + len(message).to_bytes(4, "big")), memoryview(message))
        self._blocked[call.number] = stream
        self._pump(call.number, stream)

    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        stream: Stream = call.state
        if stream.call is None:
            return
        block = OK if status is grpc.StatusCode.OK else trailers(status, details)
        if not stream.has_headers:
            block = BASE + block
        last = head_of(HEADERS, END_HEADERS | END_STREAM, call.number, len(block)) + block
        if stream.unsent:  # the call counts until all has left, or its time is up
            stream.last = last
            if call.until_s is not None:
                stream.timer = self._loop.call_at(call.until_s, self._unread, call.number, stream)
        else:
            self._ended(call.number, stream, last)

    def _unread(self, number: int, stream: Stream) -> None:
        if self._streams.pop(number, None) is not None:
            self._drop(stream)
            self._write(frame(RESET, 0, number, CANCEL.to_bytes(4, "big")))

    def _ended(self, number: int, stream: Stream, last: bytes) -> None:
        if not stream.is_half_closed:
            last += frame(RESET, 0, number, NO_ERROR.to_bytes(4, "big"))  # nothing more is read of it
        else:
            self._idle_frames = 0
            self._resets = max(0.0, self._resets - 1)
        self._streams.pop(number, None)
        self._drop(stream)
        self._write(last)
        if not self._streams and not self._is_parsing:  # no other answer can follow at once
            self._flush()

    def taken(self, call: RpcCall, size: int) -> None:
        stream: Stream = call.state
        if stream.unread > WINDOW_BYTES // 2 and stream.call is not None and not stream.is_half_closed:
            self._idle_frames = 0
            self._give(call.number, stream)

    def _give(self, number: int, stream: Stream) -> None:
        stream.credit += stream.unread
        self._write(window_of(number, stream.unread))
        stream.unread = 0

    async def room(self, call: RpcCall) -> None:
        stream: Stream = call.state
        while stream.call is not None and sum(map(len, stream.unsent)) > _ROOM_BYTES:
            stream.waiter = self._loop.create_future()
            await stream.waiter

    def _pump_all(self) -> None:
        for number, stream in list(self._blocked.items()):
            if self._window <= 0 or self._is_paused:
                return
            self._pump(number, stream)

    def _pump(self, number: int, stream: Stream) -> None:
        """Send what the windows let leave, in frames as large as the client takes."""
        while stream.unsent and not self._is_paused:
            room = min(self._frame_bytes, stream.window, self._window)
            if room <= 0:
                break
            parts: list[memoryview] = []
            size = 0
            while stream.unsent and size < room:
                part = stream.unsent.popleft()
                if len(part) > room - size:
                    stream.unsent.appendleft(part[room - size :])
                    part = part[: room - size]
                parts.append(part)
                size += len(part)
            stream.window -= size
            self._window -= size
            self._unsent_bytes -= size
            self._write(head_of(DATA, 0, number, size), *parts)
        if stream.waiter is not None and not stream.waiter.done() and sum(map(len, stream.unsent)) <= _ROOM_BYTES:
            stream.waiter.set_result(None)
        if not stream.unsent:
            self._blocked.pop(number, None)
            if stream.last is not None:
                self._ended(number, stream, stream.last)

    def _drop(self, stream: Stream) -> None:
        """A stream is gone, with all that is of it."""
        call, stream.call = stream.call, None
        if call is not None:
            self._blocked.pop(call.number, None)
            self._calls.ended(call)
            if not call.is_over:
                call.cancel()
        if stream.timer is not None:
            stream.timer.cancel()
        self._unsent_bytes -= sum(map(len, stream.unsent))
        stream.unsent.clear()
        if stream.waiter is not None and not stream.waiter.done():
            stream.waiter.set_result(None)
