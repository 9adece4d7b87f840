"""Header frames of an HTTP/2 connection: decodes header blocks, opens streams, and admits their calls."""

from __future__ import annotations

import grpc

from jellybean_agent.rpc.call_headers import Refusal, read_call_headers
from jellybean_agent.rpc.calls import CallHeaders, CallServer, RpcCall, unknown_method
from jellybean_agent.rpc.frames import (
    CLOSED,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADER_BYTES,
    PADDED,
    PROTOCOL_ERROR,
    REFUSED,
    SIZE,
    WITH_PRIORITY,
    BrokenError,
    StreamError,
    unpadded,
)
from jellybean_agent.rpc.hpack import Decoder
from jellybean_agent.rpc.http2_flood import FloodGuard
from jellybean_agent.rpc.http2_requests import RequestAssembler
from jellybean_agent.rpc.http2_responses import ResponseSender
from jellybean_agent.rpc.http2_stream import Stream, StreamTable

_PRIORITY_BYTES = 5  # of a HEADERS frame that has a priority


class CallOpener:
    """Opens the calls of one connection. `is_draining`: new calls are refused.

    `incomplete`: a header block whose CONTINUATION must be the next frame.
    """

    def __init__(
        self,
        server: CallServer,
        streams: StreamTable,
        requests: RequestAssembler,
        responses: ResponseSender,
        guard: FloodGuard,
    ) -> None:
        self._server, self._streams, self._responses, self._guard = server, streams, responses, guard
        self._requests = requests
        self._decoder: Decoder[CallHeaders | Refusal] = Decoder(HEADER_BYTES, read_call_headers)
        self.incomplete: tuple[int, int, bytearray] | None = None  # stream, flags, bytes of an incomplete header block
        self._new_calls: list[tuple[RpcCall, Stream]] = []  # opened by the present read
        self.is_draining = False

    def headers(self, flags: int, number: int, payload: memoryview) -> None:
        """A HEADERS frame."""
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise BrokenError(SIZE, "HEADERS without the priority that they announce")
            payload = payload[_PRIORITY_BYTES:]
        if not number & 1:
            raise BrokenError(PROTOCOL_ERROR, f"a client's stream has an odd number, not {number}")
        if flags & END_HEADERS:
            self._open(number, flags, bytes(payload))
        else:
            self.incomplete = (number, flags, bytearray(payload))

    def continuation(self, flags: int, _number: int, payload: memoryview) -> None:
        """A CONTINUATION frame."""
        if self.incomplete is None:
            raise BrokenError(PROTOCOL_ERROR, "a CONTINUATION of nothing")
        self._guard.count_idle()
        number, first_flags, block = self.incomplete
        block += payload
        if len(block) > HEADER_BYTES:
            raise BrokenError(ENHANCE_YOUR_CALM, f"a header block above {HEADER_BYTES} bytes")
        if flags & END_HEADERS:
            self.incomplete = None
            self._open(number, first_flags, bytes(block))

    def _open(self, number: int, flags: int, block: bytes) -> None:
        """Handle a complete header block: it opens a new call, or is the trailers of an open one."""
        headers = self._decoder.decode(block)
        ends_stream = bool(flags & END_STREAM)
        if number <= self._streams.last:
            self._trailers(number, headers, ends_stream=ends_stream)
            return
        self._streams.begin(number)
        if self.is_draining:
            self._guard.count_idle()
            self._responses.reset(number, REFUSED)
            return
        if isinstance(headers, Refusal) and headers.response:
            self._guard.count_idle()
            self._responses.refuse(number, headers.response, has_ended=ends_stream)
            return
        if isinstance(headers, Refusal) or not headers.path:
            raise StreamError(PROTOCOL_ERROR)
        if len(self._streams.by_number) >= self._server.max_streams:
            raise BrokenError(ENHANCE_YOUR_CALM, f"more than {self._server.max_streams} streams")
        stream = self._streams.open(number)
        method = self._server.methods.get(headers.path)
        known = method or unknown_method(headers.path)
        call = stream.call = RpcCall(self._responses, number, headers, known, headers.timeout_s)
        call.wire_state = stream
        stream.queued = headers.size
        self._admit(call, is_known=method is not None)
        if ends_stream and number in self._streams.by_number:
            self.half_close(stream)

    def _trailers(self, number: int, headers: CallHeaders | Refusal, *, ends_stream: bool) -> None:
        """Handle headers of a stream that was opened before, and may be closed already."""
        stream = self._streams.by_number.get(number)
        if stream is None:
            self._guard.count_idle()
            if not self._streams.may_get_frames(number):
                raise StreamError(CLOSED)
        elif stream.is_half_closed:
            raise StreamError(CLOSED)
        elif not ends_stream or isinstance(headers, Refusal) or headers.path:
            raise StreamError(PROTOCOL_ERROR)
        else:
            self.half_close(stream)

    def _admit(self, call: RpcCall, *, is_known: bool) -> None:
        """Refuse a call, or start it as far as its headers allow. `is_known`: the server has its method."""
        headers, method = call.headers, call.method
        refusal = self._server.admit(call)
        if refusal:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        elif not is_known:
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"no method {headers.path[:200]}")
        elif headers.compression not in ("identity", "gzip", "deflate"):
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"messages in {headers.compression[:40]} are not read; gzip is")
        else:
            if not headers.is_authorised:
                self._server.authorise(call)
            if call.is_over:
                return
            if not method.is_unary:
                if self._requests.hold(call.wire_state):
                    call.start_stream()
            else:
                self._new_calls.append((call, call.wire_state))

    def half_close(self, stream: Stream) -> None:
        """The client has half-closed a stream: handle a unary call's request, once it is decompressed."""
        stream.is_half_closed = True
        call = stream.call
        if call is None or call.is_over:
            return
        if call.headers.content_bytes not in (None, stream.content_bytes):
            raise StreamError(PROTOCOL_ERROR)
        if stream.need >= 0 or stream.got:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, "the stream ended within a message")
        else:
            self._requests.end(call, stream)

    def start_deadlines(self) -> None:
        """Start the deadlines of new unary calls whose requests have not arrived with the same read."""
        if self._new_calls:
            calls, self._new_calls = self._new_calls, []
            for call, stream in calls:
                if not call.is_over and not stream.is_half_closed:
                    call.start_deadline()
                    self._server.awaits_request(call)
                    self._requests.hold(stream)
