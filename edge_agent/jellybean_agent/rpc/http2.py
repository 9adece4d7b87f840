"""One HTTP/2 connection (RFC 9113) of a gRPC server, without TLS: frames and calls. Messages: `http2_in`, `http2_out`.

What a client may make this process hold is bounded: header blocks, messages, what a stream may send before it is read,
what lies unsent, calls under way. A client that breaks the protocol loses its connection, one that floods it with
frames that cost it nothing, or with calls that it resets, too.
"""

from __future__ import annotations

import asyncio
import os
import struct
from typing import cast

import grpc
import numpy as np

from jellybean_agent.rpc.calls import Calls, Head, RpcCall, no_method
from jellybean_agent.rpc.frames import (
    ACK,
    CALM,
    CLOSED,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    FRAME_BYTES,
    GOAWAY,
    HEAD,
    HEADER_BYTES,
    HEADERS,
    LARGEST_WINDOW,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH,
    REFUSED,
    RESET,
    SETTING,
    SETTINGS,
    SIZE,
    WINDOW,
    WINDOW_BYTES,
    WITH_PRIORITY,
    BrokenError,
    frame,
    read_head,
    unpadded,
    window_of,
)
from jellybean_agent.rpc.hpack import Decoder, HpackError
from jellybean_agent.rpc.http2_in import Incoming
from jellybean_agent.rpc.http2_stream import DIRECT_BYTES, Stream
from jellybean_agent.rpc.unix_socket import GREETING, WITH_STREAMS, Lane, peer_uid

_CONNECTION_WINDOW = 2**30
_READ_BYTES = 2**16
_MOST_DIRECT_BYTES = 2**23  # of a message: above it, it is not read to where it belongs at once
_UNSENT_BYTES = 2**20  # above it nothing is read
_IDLE_FRAMES = 10_000  # that cost a client nothing, between two calls that were answered
_RESETS, _RESETS_PER_S = 2_000, 200.0  # of calls under way: at once, and in the long run; one more for each answer
_STREAMS_A_FRAME = 64  # that are looked at for what one frame counts


class Connection(Incoming, asyncio.BufferedProtocol):
    """A client's connection. It lives as long as its transport."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls)
        self.peer = ""
        self._headers: Decoder[Head] = Decoder(HEADER_BYTES, read_head)
        self._buffer: memoryview = np.empty(_READ_BYTES, np.uint8).data
        self._rest = b""
        self._is_greeted = self._is_settled = self._is_leaving = False
        self._data: tuple[int, int, int] = (0, 0, 0)  # stream, bytes to come, flags of the DATA frame under way
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, what came of a split header block
        self._last = 0
        self._initial_window = 2**16 - 1
        self._taken = 0  # of the connection's window
        self._reset_s = 0.0  # when resets were counted last
        self._fresh: list[tuple[RpcCall, Stream]] = []  # calls that came with what is read now
        self._rarely = {
            CONTINUATION: self._continued,
            SETTINGS: self._settings,
            PING: self._pinged,
            RESET: self._reset,
            PUSH: self._pushed,
            GOAWAY: self._told_to_leave,
        }

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"ipv4:{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix:"
        self._calls.opened(self)

    def _greet(self) -> None:
        settings = {3: self._calls.most_streams, 4: WINDOW_BYTES, 5: FRAME_BYTES, 6: HEADER_BYTES}
        payload = b"".join(SETTING.pack(name, value) for name, value in settings.items())
        self._write(frame(SETTINGS, 0, 0, payload), window_of(0, _CONNECTION_WINDOW - 2**16 + 1))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._drop(stream)
        self._calls.closed(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
        self._is_paused = False
        self._pump_all()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room() or self._buffer

    def buffer_updated(self, size: int) -> None:
        self._received(size)

    def _room(self) -> memoryview | None:
        """Where the rest of a large message goes at once; None while there is none."""
        number, left, _ = self._data
        stream = self._streams.get(number) if left > DIRECT_BYTES else None
        if stream is None or stream.need - stream.got <= DIRECT_BYTES or stream.need > _MOST_DIRECT_BYTES:
            return None
        if stream.whole is None:
            stream.whole = np.empty(stream.need, np.uint8).data  # not zeroed: all of it is read into
            stream.whole[: stream.got] = stream.part
            stream.part.clear()
        return stream.whole[stream.got : stream.got + min(left, stream.need - stream.got)]

    def _received(self, size: int) -> None:
        self._is_flushing = self._is_parsing = True  # all that is said meanwhile leaves at the end of this
        try:
            if self._room() is None:
                self._parse(bytes(self._buffer[:size]))
            else:
                number, left, flags = self._data
                self._data = (number, left - size, flags)
                self._body(number, None, bool(flags & END_STREAM) and left == size, size)
        except HpackError as error:
            self._break(COMPRESSION, str(error))
        except BrokenError as error:
            self._break(error.code, str(error))
        finally:
            self._is_flushing = self._is_parsing = False
            if self._fresh:
                self._await_requests()
            self._flush()

    def _await_requests(self) -> None:
        fresh, self._fresh = self._fresh, []
        for call, stream in fresh:
            if not call.is_over and not stream.is_half_closed:
                call.await_request()

    # -- frames in ----------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        if not self._is_greeted:
            told = data[: len(GREETING)]
            if PREFACE.startswith(data[: len(PREFACE)]) or (
                self._is_local and (GREETING.startswith(told) or WITH_STREAMS.startswith(told))
            ):
                if size < (len(PREFACE) if data[:1] == PREFACE[:1] else len(GREETING)):
                    self._rest = data
                    return
            else:
                raise BrokenError(PROTOCOL_ERROR, "no HTTP/2 preface")
            if not data.startswith(PREFACE):
                self._to_lane(told, data[len(told) :])
                return
            self._is_greeted, at = True, len(PREFACE)
            self._greet()
        view = memoryview(data)
        while at < size and self._transport is not None:
            taken = self._take_data(view[at:]) if self._data[1] else self._take_frame(data, view, at)
            if not taken:
                break
            at += taken
        self._rest = data[at:]

    def _take_data(self, view: memoryview) -> int:
        """More of the DATA frame under way; how much of it there was."""
        number, left, flags = self._data
        part = view[:left]
        self._data = (number, left - len(part), flags)
        self._body(number, part, bool(flags & END_STREAM) and len(part) == left)
        return len(part)

    def _take_frame(self, data: bytes, view: memoryview, at: int) -> int:
        """The frame that begins at `at`, or the head of a DATA frame; 0 when it is not all there."""
        if len(data) - at < HEAD.size:
            return 0
        high, low, kind, flags, number = HEAD.unpack_from(data, at)
        length = high << 16 | low
        number &= 0x7FFFFFFF
        self._check_frame(kind, number, length)
        if kind == DATA and not flags & PADDED:
            self._data = (number, length, flags)
            if not length:
                self._count_idle()
                self._body(number, view[:0], bool(flags & END_STREAM))
            return int(HEAD.size)
        if len(data) - at < HEAD.size + length:
            return 0
        self._frame(kind, flags, number, view[at + HEAD.size : at + HEAD.size + length])
        return int(HEAD.size + length)

    def _check_frame(self, kind: int, number: int, length: int) -> None:
        if length > (FRAME_BYTES if kind == DATA else HEADER_BYTES):
            raise BrokenError(SIZE, f"a frame of kind {kind} of {length} bytes")
        if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
            raise BrokenError(PROTOCOL_ERROR, "a header block that is not continued")
        if not self._is_settled and kind != SETTINGS:
            raise BrokenError(PROTOCOL_ERROR, "no SETTINGS first")

    @property
    def _is_local(self) -> bool:
        return self.peer == "unix:"

    def _to_lane(self, greeting: bytes, rest: bytes) -> None:
        """Go on as the fast lane; with this user only."""
        transport = self._transport
        if transport is None:
            return
        self._transport = None
        self._calls.closed(self)
        if peer_uid(transport.get_extra_info("socket")) != os.geteuid():
            transport.close()
            return
        lane = Lane(self._calls, greeting)
        transport.set_protocol(lane)
        lane.connection_made(transport)
        lane.feed(rest)

    def _frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        if kind == HEADERS:
            self._headers_frame(flags, number, payload)
        elif kind == WINDOW:
            self._grown(number, payload)
        elif kind == DATA:
            self._body(number, unpadded(payload), bool(flags & END_STREAM), len(payload))
        elif kind in self._rarely:
            self._rarely[kind](flags, number, payload)
        else:  # PRIORITY and what is not known
            self._count_idle()

    def _pinged(self, flags: int, number: int, payload: memoryview) -> None:
        if len(payload) != 8 or number:
            raise BrokenError(SIZE, "a PING of another size")
        if not flags & ACK:
            self._count_idle()
            self._write(frame(PING, ACK, 0, bytes(payload)))

    def _reset(self, _flags: int, number: int, payload: memoryview) -> None:
        if len(payload) != 4 or not 0 < number <= self._last:
            raise BrokenError(PROTOCOL_ERROR, "a RST_STREAM of no stream")
        self._count_idle()
        stream = self._streams.pop(number, None)
        if stream is not None:
            if stream.call is not None and not stream.call.is_over:
                self._count_reset()
            self._drop(stream)

    def _count_reset(self) -> None:
        now_s = self._loop.time()
        self._resets = max(0.0, self._resets - (now_s - self._reset_s) * _RESETS_PER_S) + 1
        self._reset_s = now_s
        if self._resets > _RESETS:
            raise BrokenError(CALM, f"{_RESETS} calls that were begun and reset")

    def _pushed(self, _flags: int, _number: int, _payload: memoryview) -> None:
        raise BrokenError(PROTOCOL_ERROR, "a client does not push")

    def _told_to_leave(self, _flags: int, _number: int, _payload: memoryview) -> None:
        self._is_leaving = True

    def _count_idle(self, streams: int = 0) -> None:
        """A frame that asks for nothing has come. `streams`: so many were looked at for it."""
        self._idle_frames += 1 + streams // _STREAMS_A_FRAME
        if self._idle_frames > _IDLE_FRAMES:
            raise BrokenError(CALM, f"{_IDLE_FRAMES} frames that ask for nothing")

    def _headers_frame(self, flags: int, number: int, payload: memoryview) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & WITH_PRIORITY:
            payload = payload[5:]
        if not number & 1:
            raise BrokenError(PROTOCOL_ERROR, f"a client's stream has an odd number, not {number}")
        if flags & END_HEADERS:
            self._opened(number, flags, bytes(payload))
        else:
            self._block = (number, flags, bytearray(payload))

    def _continued(self, flags: int, _number: int, payload: memoryview) -> None:
        if self._block is None:
            raise BrokenError(PROTOCOL_ERROR, "a CONTINUATION of nothing")
        self._count_idle()
        number, first, block = self._block
        block += payload
        if len(block) > HEADER_BYTES:
            raise BrokenError(CALM, f"a header block above {HEADER_BYTES} bytes")
        if flags & END_HEADERS:
            self._block = None
            self._opened(number, first, bytes(block))

    def _settings(self, flags: int, number: int, payload: memoryview) -> None:
        if number or len(payload) % 6:
            raise BrokenError(SIZE, "SETTINGS of another size")
        self._is_settled = True
        if flags & ACK:
            return
        self._count_idle(len(self._streams))
        initial_window = self._initial_window
        for name, value in SETTING.iter_unpack(payload):
            if name == 4:
                if value > LARGEST_WINDOW:
                    raise BrokenError(FLOW, f"a window of {value}")
                initial_window = value
            elif name == 5:
                if not 2**14 <= value < 2**24:
                    raise BrokenError(PROTOCOL_ERROR, f"frames of {value}")
                self._frame_bytes = min(value, FRAME_BYTES)
        self._widen(initial_window - self._initial_window)
        self._write(frame(SETTINGS, ACK, 0, b""))
        self._pump_all()

    def _widen(self, more: int) -> None:
        """All streams' windows begin larger, or smaller, than they did."""
        self._initial_window += more
        for stream in self._streams.values() if more else ():
            stream.window += more
            if stream.window > LARGEST_WINDOW:
                raise BrokenError(FLOW, "a stream's window out of bounds")

    def _grown(self, number: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise BrokenError(SIZE, "a WINDOW_UPDATE of another size")
        more = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if number == 0:
            self._window += more
            if more == 0 or self._window > LARGEST_WINDOW:
                raise BrokenError(FLOW, "a connection's window out of bounds")
            before = self._window
            self._pump_all()
            if self._window == before:
                self._count_idle(len(self._blocked))
            return
        if number > self._last:
            raise BrokenError(PROTOCOL_ERROR, "a WINDOW_UPDATE of no stream")
        stream = self._streams.get(number)
        if stream is None:
            self._count_idle()
            return
        stream.window += more
        if more == 0 or stream.window > LARGEST_WINDOW:
            raise BrokenError(FLOW, "a stream's window out of bounds")
        if number in self._blocked:
            self._pump(number, stream)
        else:
            self._count_idle()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _opened(self, number: int, flags: int, block: bytes) -> None:
        head = self._headers.decode(block)
        over = bool(flags & END_STREAM)
        if number <= self._last:  # trailers, of a stream that may be over already
            if not over:
                raise BrokenError(PROTOCOL_ERROR, "headers twice")
            known = self._streams.get(number)
            if known is None:
                self._count_idle()
            elif known.is_half_closed:
                raise BrokenError(CLOSED, "headers after a stream's end")
            else:
                self._half_closed(number, known)
            return
        self._last = number
        if self._is_leaving:
            self._count_idle()
            self._write(frame(RESET, 0, number, REFUSED.to_bytes(4, "big")))
            return
        if len(self._streams) >= self._calls.most_streams:
            raise BrokenError(CALM, f"more than {self._calls.most_streams} streams")
        stream = self._streams[number] = Stream(self._initial_window)
        method = self._calls.methods.get(head.path)
        call = stream.call = RpcCall(self, number, head, method or no_method(head.path), head.timeout_s)
        call.state = stream
        self._admit(call, method is not None)
        if over and number in self._streams:
            self._half_closed(number, stream)

    def _admit(self, call: RpcCall, is_known: bool) -> None:
        head, method = call.head, call.method
        self._calls.began(call)
        why = self._calls.refusal()
        if why:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        elif not is_known:
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"no method {head.path[:200]}")
        elif head.encoding not in ("identity", "gzip", "deflate"):
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"messages in {head.encoding[:40]} are not read; gzip is")
        else:
            if not head.is_allowed:
                self._calls.allow(call)
            if call.is_over:
                return
            if not method.is_unary:
                call.begin()
            elif call.until_s is not None:
                self._fresh.append((call, call.state))

    def _body(self, number: int, part: memoryview | None, over: bool, size: int | None = None) -> None:
        """Something of a stream has come; None: it lies where it belongs already."""
        size = len(part or b"") if size is None else size
        self._taken += size
        if self._taken > _CONNECTION_WINDOW // 2:
            self._write(window_of(0, self._taken))
            self._taken = 0
        stream = self._streams.get(number)
        if stream is None:
            if not 0 < number <= self._last:
                raise BrokenError(PROTOCOL_ERROR, "DATA of no stream")
            self._count_idle()
            return
        stream.spend(size)
        if part is None:
            self._filled(stream, size)
        while part and number in self._streams:
            part = self._message(stream, part)
        if number not in self._streams:
            return
        if over:
            self._half_closed(number, stream)
            return
        stream.keep()
        if stream.need > 0 and stream.unread > WINDOW_BYTES // 2:
            self._give(number, stream)  # the message under way must not wait for itself

    def _half_closed(self, number: int, stream: Stream) -> None:
        stream.is_half_closed = True
        call = stream.call
        if call is None or call.is_over:
            return
        if stream.need >= 0 or stream.got:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "the stream ended within a message")
        elif not call.method.is_unary:
            call.no_more()
        elif stream.request is None:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "a call without a request")
        else:
            request, stream.request = stream.request, None
            call.received(request)

    # -- the end ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Take no further call; those under way go on."""
        if not self._is_leaving:
            self._is_leaving = True
            self._write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last, NO_ERROR)))

    def close(self) -> None:
        """End the calls and the connection, once what was said has left."""
        for stream in list(self._streams.values()):
            if stream.call is not None:
                stream.call.end(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _break(self, code: int, reason: str) -> None:
        self._write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last, code) + reason.encode()[:200]))
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._drop(stream)
