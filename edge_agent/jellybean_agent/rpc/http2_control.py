"""Control frames of an HTTP/2 connection: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, and what clients must not send."""

from __future__ import annotations

import asyncio

from jellybean_agent.rpc.frames import (
    ACK,
    FLOW,
    FRAME_BYTES,
    HEADER_BYTES,
    LARGEST_WINDOW,
    PING,
    PROTOCOL_ERROR,
    SETTING,
    SETTINGS,
    SIZE,
    WINDOW_BYTES,
    BrokenError,
    StreamError,
    frame,
    window_update,
)
from jellybean_agent.rpc.http2_flood import FloodGuard
from jellybean_agent.rpc.http2_responses import ResponseSender
from jellybean_agent.rpc.http2_stream import StreamTable
from jellybean_agent.rpc.write_buffer import WriteBuffer

CONNECTION_WINDOW = 2**30  # bytes that a client may send on the whole connection before they are consumed
_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _MAX_HEADERS = 2, 3, 4, 5, 6  # identifiers of settings


class ControlFrames:
    """The control frames of one connection. `has_settings`: the client has sent its SETTINGS, which must come first."""

    def __init__(self, streams: StreamTable, responses: ResponseSender, out: WriteBuffer, guard: FloodGuard) -> None:
        self._streams, self._responses, self._out, self._guard = streams, responses, out, guard
        self._loop = asyncio.get_running_loop()
        self.has_settings = False

    def send_settings(self, max_streams: int) -> None:
        """Send the server's preface: its settings and the window of the connection."""
        settings = {
            _MAX_STREAMS: max_streams,
            _INITIAL_WINDOW: WINDOW_BYTES,
            _MAX_FRAME: FRAME_BYTES,
            _MAX_HEADERS: HEADER_BYTES,
        }
        payload = b"".join(SETTING.pack(name, value) for name, value in settings.items())
        self._out.write(frame(SETTINGS, 0, 0, payload), window_update(0, CONNECTION_WINDOW - 2**16 + 1))

    def settings(self, flags: int, number: int, payload: memoryview) -> None:
        """The client's SETTINGS: the size of its frames and windows."""
        if number:
            raise BrokenError(PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise BrokenError(SIZE, "SETTINGS of another size")
        self.has_settings = True
        if flags & ACK:
            return
        self._guard.count_idle(len(self._streams.by_number))
        window = self._streams.initial_window
        for name, value in SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW:
                if value > LARGEST_WINDOW:
                    raise BrokenError(FLOW, f"a window of {value}")
                window = value
            elif name == _MAX_FRAME:
                if not 2**14 <= value < 2**24:
                    raise BrokenError(PROTOCOL_ERROR, f"frames of {value}")
                self._responses.frame_bytes = min(value, FRAME_BYTES)
            elif name == _PUSH and value > 1:
                raise BrokenError(PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        self._streams.change_initial_window(window)
        self._out.write(frame(SETTINGS, ACK, 0, b""))
        self._responses.send_all_unsent()

    def window(self, _flags: int, number: int, payload: memoryview) -> None:
        """WINDOW_UPDATE: the client accepts more bytes of a stream, or of the connection."""
        if len(payload) != 4:
            raise BrokenError(SIZE, "a WINDOW_UPDATE of another size")
        if number > self._streams.last:
            raise BrokenError(PROTOCOL_ERROR, "a WINDOW_UPDATE of no stream")
        self._responses.window_grown(number, int.from_bytes(payload, "big") & 0x7FFFFFFF)

    def ping(self, flags: int, number: int, payload: memoryview) -> None:
        """PING: answer it."""
        if number:
            raise BrokenError(PROTOCOL_ERROR, "a PING of a stream")
        if len(payload) != 8:
            raise BrokenError(SIZE, "a PING of another size")
        if not flags & ACK:
            self._guard.count_idle()
            self._out.write(frame(PING, ACK, 0, bytes(payload)))

    def reset(self, _flags: int, number: int, payload: memoryview) -> None:
        """RST_STREAM: the client cancels a call."""
        if not 0 < number <= self._streams.last:
            raise BrokenError(PROTOCOL_ERROR, "a RST_STREAM of no stream")
        if len(payload) != 4:
            raise BrokenError(SIZE, "a RST_STREAM of another size")
        self._guard.count_idle()
        stream = self._streams.by_number.pop(number, None)
        if stream is not None:
            if stream.call is not None and not stream.call.is_over:
                self._guard.count_reset(self._loop.time())
            self._responses.drop(stream)

    def priority(self, _flags: int, number: int, payload: memoryview) -> None:
        """PRIORITY, which RFC 9113 has deprecated: its form is checked, and it changes nothing."""
        self._guard.count_idle()
        if not number:
            raise BrokenError(PROTOCOL_ERROR, "a PRIORITY of no stream")
        if len(payload) != 5:
            raise StreamError(SIZE)

    def push(self, _flags: int, _number: int, _payload: memoryview) -> None:
        """PUSH_PROMISE, which only servers send."""
        raise BrokenError(PROTOCOL_ERROR, "a client does not push")
