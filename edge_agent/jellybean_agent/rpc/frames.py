"""HTTP/2 frames (RFC 9113) and what gRPC puts into them: constants, and pure functions of bytes."""

from __future__ import annotations

import struct
from urllib.parse import quote

import grpc

from jellybean_agent.rpc.hpack import encode_headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, INTERNAL, FLOW, CLOSED, SIZE = 0, 1, 2, 3, 5, 6
REFUSED, CANCEL, COMPRESSION, ENHANCE_YOUR_CALM = 7, 8, 9, 11
HEAD = struct.Struct(">BHBBI")
SETTING = struct.Struct(">HI")
FRAME_BYTES = 2**20  # largest frame that this server accepts
WINDOW_BYTES = 2**20  # flow-control window of a stream: unconsumed bytes that a client may send
HEADER_BYTES = 32 * 2**10  # largest accepted header block
LARGEST_WINDOW = LARGEST_STREAM = 2**31 - 1
RESPONSE_HEADERS = encode_headers(
    ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"gzip"))
)
OK_TRAILERS = encode_headers(((b"grpc-status", b"0"),))


class BrokenError(Exception):
    """A connection error (RFC 9113, 5.4.1): the connection is closed with the HTTP/2 error code `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamError(Exception):
    """A stream error (RFC 9113, 5.4.2): the stream is reset with the HTTP/2 error code `code`, the others go on."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """A complete frame as bytes. `number`: of its stream; 0: the connection."""
    return frame_head(kind, flags, number, len(payload)) + payload


def frame_head(kind: int, flags: int, number: int, size: int) -> bytes:
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, number)


def window_update(number: int, more: int) -> bytes:
    return frame(WINDOW, 0, number, more.to_bytes(4, "big"))


def unpadded(payload: memoryview) -> memoryview:
    """The payload of a padded frame without its padding. BrokenError if the padding is invalid."""
    if not payload or payload[0] >= len(payload):
        raise BrokenError(PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def trailers(status: grpc.StatusCode, details: str) -> bytes:
    """The header block of a call's trailing status."""
    message = quote(details[:4000], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return encode_headers(((b"grpc-status", str(status.value[0]).encode()), (b"grpc-message", message.encode())))
