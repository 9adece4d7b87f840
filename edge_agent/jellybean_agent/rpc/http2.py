"""One HTTP/2 connection (RFC 9113) of a gRPC server: reads frames and hands them to its parts.

The parts: `http2_headers` opens calls, `http2_requests` reassembles their messages, `http2_responses` sends answers,
`http2_control` handles control frames, `http2_flood` counts frames without effect. Memory used for a client is bounded:
header blocks, messages, bytes not yet consumed or not yet sent, calls in progress. A request that is wrong by itself
is refused on its stream (`StreamError`). The connection of a client that breaks the protocol of connections, or floods
the server with cheap frames or resets, is closed (`BrokenError`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

import grpc

from jellybean_agent.admission.gate import GATE_ENTRY, Entry
from jellybean_agent.admission.turns import WorkInTurns
from jellybean_agent.rpc.calls import NO_AUTH_CONTEXT, SHUTTING_DOWN, AuthContext, CallServer
from jellybean_agent.rpc.frames import (
    CLOSED,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_BYTES,
    GOAWAY,
    HEAD,
    HEADER_BYTES,
    HEADERS,
    LARGEST_STREAM,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH,
    RESET,
    SETTINGS,
    SIZE,
    WINDOW,
    WINDOW_BYTES,
    BrokenError,
    StreamError,
    frame,
    window_update,
)
from jellybean_agent.rpc.hpack import HpackError
from jellybean_agent.rpc.http2_control import CONNECTION_WINDOW, ControlFrames
from jellybean_agent.rpc.http2_flood import FloodGuard
from jellybean_agent.rpc.http2_headers import CallOpener
from jellybean_agent.rpc.http2_requests import RequestAssembler
from jellybean_agent.rpc.http2_responses import ResponseSender
from jellybean_agent.rpc.http2_stream import DIRECT_BYTES, Stream, StreamTable
from jellybean_agent.rpc.unix_socket import UnixSocketConnection
from jellybean_agent.rpc.unix_socket_frames import GREETING, STREAMS_GREETING, peer_uid
from jellybean_agent.rpc.write_buffer import WriteBuffer
from jellybean_agent.system.addresses import peer_name

_READ_BYTES = 2**16
_DISCARDED_READS = 64  # so that a client that goes on sending is not read for ever
_WAITING_BYTES = 2**17 + 2**16  # read, of TLS too, and not parsed yet: what a connection keeps until its peer's turn
_NOTHING = memoryview(b"")
_GOAWAY_BYTES = 8  # without the text behind
_RETIRE_S = 1.0  # from a GOAWAY until calls are refused: longer than it takes a client to know
_UNSENT_BYTES = 2**16  # bytes in the transport's write buffer above which reading pauses, and they count
_CLOSE_S = 5.0  # for a closed connection's last bytes to be read, before it is aborted


class Http2Connection(asyncio.BufferedProtocol):
    """A client's connection, for as long as its transport lives. On a Unix socket it may switch to our own protocol.

    `auth_context`: of the client's certificate.
    """

    def __init__(self, server: CallServer, auth_context: AuthContext = NO_AUTH_CONTEXT) -> None:
        self._server = server
        self._out = WriteBuffer()
        self._guard = FloodGuard(server.flood_limits)
        self._streams = StreamTable()
        self.responses = ResponseSender(server, self._streams, self._out, self._guard)
        self.responses.auth_context = auth_context
        self._requests = RequestAssembler(server)
        self._control = ControlFrames(self._streams, self.responses, self._out, self._guard)
        self._calls = CallOpener(server, self._streams, self._requests, self.responses, self._guard)
        self._buffer = server.read_buffer
        self._rest = b""  # bytes not parsed yet: an incomplete frame, or what waits for the peer's next turn
        self._turns = WorkInTurns(self._parse, self._continue)
        self._has_preface = False
        self._data: tuple[int, int, int] = (0, 0, 0)  # of the DATA frame being received: stream, bytes left, flags
        self._padding = 0  # bytes of padding left after it
        self._closing: asyncio.Transport | None = None  # of a connection that has violated the protocol
        self._unacknowledged = 0  # bytes received that were not given back to the connection's window yet
        self._frames = {
            HEADERS: self._calls.headers,
            WINDOW: self._control.window,
            CONTINUATION: self._calls.continuation,
            SETTINGS: self._control.settings,
            PING: self._control.ping,
            RESET: self._control.reset,
            PRIORITY: self._control.priority,
            PUSH: self._control.push,
            GOAWAY: self._client_leaves,
        }

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out.transport = cast(asyncio.Transport, transport)
        self._out.transport.set_write_buffer_limits(_UNSENT_BYTES)
        self.responses.peer = peer_name(transport)
        entry: Entry | None = transport.get_extra_info(GATE_ENTRY)
        caller = self._server.opened(self, self.responses.peer, self.responses.auth_context, entry)
        self.responses.caller = caller
        if caller is None:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._out.transport = self._closing = None
        self._drop(deque(self._streams.take_all()))
        self.responses.resume()
        self._server.closed(self, self.responses.caller)

    def pause_writing(self) -> None:
        transport = self._out.transport or self._closing
        self.responses.pause(0 if transport is None else transport.get_write_buffer_size())
        if self._out.transport is not None:
            self._out.transport.pause_reading()

    def resume_writing(self) -> None:
        self.responses.resume()
        self._resume_reading()
        self.responses.send_all_unsent()

    def _resume_reading(self) -> None:
        if self._out.transport is not None and not (self._turns.is_waiting or self.responses.is_paused):
            self._out.transport.resume_reading()
            if self._rest:
                self.buffer_updated(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._direct_buffer() or self._buffer

    def buffer_updated(self, size: int) -> None:
        self._out.is_held = True  # all answers to this read leave together
        try:
            if self._direct_buffer() is None:
                self._rest += bytes(self._buffer[:size])
                if self.responses.caller is not None:
                    self._turns.run(self.responses.caller.turn, self._pause_for_turn)
            else:
                number, left, flags = self._data
                self._data = (number, left - size, flags)
                self._receive_data(number, None, size, ends_stream=bool(flags & END_STREAM) and left == size)
        except HpackError as error:
            self._break(COMPRESSION, str(error))
        except BrokenError as error:
            self._break(error.code, str(error))
        finally:
            self._out.is_held = False
            self._calls.start_deadlines()
            self._out.flush()

    def _direct_buffer(self) -> memoryview | None:
        """Memory into which the rest of a large message is received without a copy; None if no such message is due."""
        number, left, _ = self._data
        return self._requests.direct_buffer(self._streams.by_number.get(number), left) if left > DIRECT_BYTES else None

    # -- frames -------------------------------------------------------------------------------------------------------

    @property
    def waits_for_turn(self) -> bool:
        """True while something was received that the peer had no time for."""
        return self._turns.is_waiting

    def _pause_for_turn(self) -> bool:
        """Receive nothing until the peer's next turn. BrokenError if too many connections of the peer wait for it."""
        caller, transport = self.responses.caller, self._out.transport
        if caller is None or transport is None:
            return False
        if not caller.waiting.take(_WAITING_BYTES):
            raise BrokenError(ENHANCE_YOUR_CALM, "too many connections of this client wait for their turn")
        transport.pause_reading()
        return True

    def _continue(self) -> None:
        if self.responses.caller is not None:
            self.responses.caller.waiting.give(_WAITING_BYTES)
        self._resume_reading()

    def _parse(self, clock: Callable[[], float], until_s: float) -> bool:
        """Parse complete frames. False if the time was over before the last one."""
        data, self._rest = self._rest, b""
        at, size = 0, len(data)
        if not self._has_preface:
            at = self._read_preface(data)
            if at == 0:
                return True
        view = memoryview(data)
        while at < size and self._out.transport is not None:
            if self._data[1]:
                taken = self._take_data(view[at:])
            elif self._padding:
                taken = min(self._padding, size - at)
                self._padding -= taken
            elif clock() >= until_s:
                self._rest = data[at:]
                return False
            else:
                taken = self._take_frame(data, view, at)
            if not taken:
                break
            at += taken
        self._rest = data[at:]
        return True

    def _read_preface(self, data: bytes) -> int:
        """Size in bytes of the client's preface; 0 if it is incomplete, or the connection has switched protocols."""
        greeting = data[: len(GREETING)]
        may_switch = self.responses.peer == "unix:" and not self.responses.auth_context
        if not PREFACE.startswith(data[: len(PREFACE)]) and not (
            may_switch and (GREETING.startswith(greeting) or STREAMS_GREETING.startswith(greeting))
        ):
            raise BrokenError(PROTOCOL_ERROR, "no HTTP/2 preface")
        if len(data) < (len(PREFACE) if data[:1] == PREFACE[:1] else len(GREETING)):
            self._rest = data
            return 0
        if not data.startswith(PREFACE):
            self._switch_protocol(greeting, data[len(greeting) :])
            return 0
        self._has_preface = True
        self._control.send_settings(self._server.max_streams)
        return len(PREFACE)

    def _take_data(self, view: memoryview) -> int:
        """Consume bytes of the DATA frame being received; returns how many."""
        number, left, flags = self._data
        part = view[:left]
        size = len(part)
        self._data = (number, left - size, flags)
        self._receive_data(number, part, size, ends_stream=bool(flags & END_STREAM) and size == left)
        return size

    def _take_frame(self, data: bytes, view: memoryview, at: int) -> int:
        """Consume the frame at offset `at` (of a DATA frame only the header). Returns its bytes; 0: incomplete."""
        if len(data) - at < HEAD.size:
            return 0
        high, low, kind, flags, number = HEAD.unpack_from(data, at)
        length = high << 16 | low
        number &= 0x7FFFFFFF
        self._check_frame(kind, number, length)
        if kind == DATA:
            return self._begin_data(data, at, length, flags, number)
        if len(data) - at < HEAD.size + length:
            return 0
        payload = view[at + HEAD.size : at + HEAD.size + length]
        if kind in self._frames:
            try:
                self._frames[kind](flags, number, payload)
            except StreamError as error:
                self._reset(number, error.code)
        else:  # frames of extensions
            self._guard.count_idle()
        return int(HEAD.size + length)

    def _begin_data(self, data: bytes, at: int, length: int, flags: int, number: int) -> int:
        """Consume what is before the content of a DATA frame, which is never kept; returns its bytes, 0: incomplete."""
        before = 0
        if flags & PADDED:
            if length and len(data) - at == HEAD.size:
                return 0
            padding = data[at + HEAD.size] if length else 0
            if padding >= length:
                raise BrokenError(PROTOCOL_ERROR, "more padding than frame")
            before, length = 1, length - 1 - padding
            self._padding = padding
        self._data = (number, length, flags)
        if before:  # padding counts for flow control
            self._receive_data(number, _NOTHING, before + self._padding, ends_stream=False)
        if not length:
            self._guard.count_idle()
            self._receive_data(number, _NOTHING, 0, ends_stream=bool(flags & END_STREAM))
        return int(HEAD.size) + before

    def _check_frame(self, kind: int, number: int, length: int) -> None:
        if length > (FRAME_BYTES if kind == DATA else HEADER_BYTES):
            raise BrokenError(SIZE, f"a frame of kind {kind} of {length} bytes")
        incomplete = self._calls.incomplete
        if incomplete is not None and (kind != CONTINUATION or number != incomplete[0]):
            raise BrokenError(PROTOCOL_ERROR, "a header block that is not continued")
        if not self._control.has_settings and kind != SETTINGS:
            raise BrokenError(PROTOCOL_ERROR, "no SETTINGS first")

    def _receive_data(self, number: int, part: memoryview | None, size: int, *, ends_stream: bool) -> None:
        """Handle the payload of a DATA frame; `part` None: it was received directly into the message's buffer."""
        try:
            self._receive_content(number, part, size, ends_stream=ends_stream)
        except StreamError as error:
            self._reset(number, error.code)

    def _receive_content(self, number: int, part: memoryview | None, size: int, *, ends_stream: bool) -> None:
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self._out.write(window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        streams = self._streams.by_number
        stream = streams.get(number)
        if stream is None:
            if not 0 < number <= self._streams.last:
                raise BrokenError(PROTOCOL_ERROR, "DATA of no stream")
            self._guard.count_idle()
            if not self._streams.may_get_frames(number):
                raise StreamError(CLOSED)
            return
        stream.receive_bytes(size)
        self.responses.data_bytes += size
        stream.content_bytes += size if part is None else len(part)
        if part is None:
            self._requests.received_directly(stream, size)
        while part and number in streams:
            part = self._requests.receive(stream, part)
        if number not in streams:
            return
        if ends_stream:
            self._calls.half_close(stream)
        else:
            self._keep_incomplete(number, stream)

    def _keep_incomplete(self, number: int, stream: Stream) -> None:
        """Count what a stream keeps until more arrives; ends its call where that is too much."""
        if stream.need <= DIRECT_BYTES or stream.charged < stream.need:  # else it is counted already
            stream.keep_request()
            if not self._requests.hold(stream):
                return
        if stream.need > 0 and stream.unread > WINDOW_BYTES // 2:
            self.responses.give_credit(number, stream)  # without credit, the rest of the message could never be sent

    def _reset(self, number: int, code: int) -> None:
        """Reset a stream whose client has broken its rules: limited as the resets of the client itself are."""
        self._guard.count_reset(asyncio.get_running_loop().time())
        self.responses.reset(number, code)

    def _client_leaves(self, _flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise BrokenError(PROTOCOL_ERROR, "a GOAWAY of a stream")
        if len(payload) < _GOAWAY_BYTES:
            raise BrokenError(SIZE, "a GOAWAY of another size")
        self._calls.is_draining = True

    def _switch_protocol(self, greeting: bytes, rest: bytes) -> None:
        """Continue with the Unix-socket protocol if the client runs as the same user. `rest`: bytes already read."""
        transport = self._out.transport
        if transport is None:
            return
        self._out.transport = None
        self._server.closed(self, self.responses.caller)
        if peer_uid(transport.get_extra_info("socket")) != os.geteuid():
            transport.close()
            return
        connection = UnixSocketConnection(self._server, greeting)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.feed(rest)

    # -- the end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Tell the client to use another connection; the calls that it opens until it knows are accepted."""
        self._out.write(frame(GOAWAY, 0, 0, struct.pack(">II", LARGEST_STREAM, NO_ERROR)))
        asyncio.get_running_loop().call_later(_RETIRE_S, self.drain)

    def drain(self) -> None:
        """Accept no further call; the calls in progress go on."""
        if not self._calls.is_draining:
            self._calls.is_draining = True
            self._out.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._streams.last, NO_ERROR)))

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """End the calls, and the connection once all answers have left."""
        for stream in list(self._streams.by_number.values()):
            if stream.call is not None:
                stream.call.end(grpc.StatusCode.UNAVAILABLE, reason)
        self._out.flush()
        if self._out.transport is not None:
            self._close_transport(self._out.transport)

    def expire(self) -> None:
        """End a connection without a call, after a GOAWAY: calls that cross it are answered."""
        if not self._has_preface:
            self.abort()
            return
        self.retire()
        self._close_once_idle()

    def _close_once_idle(self) -> None:
        if self._calls.is_draining and not self._streams.by_number:
            self.close("the connection was idle")
        elif self._out.transport is not None:
            asyncio.get_running_loop().call_later(_RETIRE_S, self._close_once_idle)

    def abort(self) -> None:
        """End the connection at once, and its calls."""
        transport = self._out.transport or self._closing
        if transport is not None:
            transport.abort()

    def _close_transport(self, transport: asyncio.Transport) -> None:
        """Close the connection once its last bytes are read, or some seconds later."""
        transport.close()
        asyncio.get_running_loop().call_later(_CLOSE_S, transport.abort)

    def _break(self, code: int, reason: str) -> None:
        """Close the connection of a client that violated the protocol, with an HTTP/2 error code."""
        last = struct.pack(">II", self._streams.last, code)
        self._out.write(frame(GOAWAY, 0, 0, last + reason.encode()[:200]))
        self._out.flush()
        if self._out.transport is not None:
            _discard_received(self._out.transport)
            self._closing, self._out.transport = self._out.transport, None  # nothing more is read or written
            self._close_transport(self._closing)
        self._drop(deque(self._streams.take_all()))

    def _drop(self, streams: deque[Stream]) -> None:
        """Release streams of the ended connection, as many as the peer has time for in each turn: it may have many."""
        caller = self.responses.caller
        began_s, until_s = (0.0, math.inf) if caller is None else caller.turn.begin()
        while streams:
            self.responses.drop(streams.popleft())
            if caller is not None and caller.turn.clock() >= until_s:
                break
        if caller is not None:
            caller.turn.end(began_s)
            if streams:
                caller.turn.wait(partial(self._drop, streams), is_first=True)


def _discard_received(transport: asyncio.Transport) -> None:
    """Discard what waits in the socket: closed with bytes unread, it would be reset, and the client lose the GOAWAY."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):  # nothing is left
            for _ in range(_DISCARDED_READS):
                if not os.read(connected.fileno(), _READ_BYTES):
                    return
