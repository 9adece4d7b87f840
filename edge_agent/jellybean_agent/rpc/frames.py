"""HTTP/2's frames and what gRPC puts into headers: constants, and functions of bytes alone."""

from __future__ import annotations

import struct
import zlib
from urllib.parse import quote

import grpc

from jellybean_agent.rpc.calls import Head, Metadata
from jellybean_agent.rpc.hpack import Headers, encode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, INTERNAL, FLOW, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION, CALM = (
    0,
    1,
    2,
    3,
    5,
    6,
    7,
    8,
    9,
    11,
)
HEAD = struct.Struct(">BHBBI")
SETTING = struct.Struct(">HI")
FRAME_BYTES = 2**20  # of a frame that we take
WINDOW_BYTES = 2**20  # that a stream may send before it is read
HEADER_BYTES = 32 * 2**10  # of a block
LARGEST_WINDOW = 2**31 - 1
BASE = encode(((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"gzip")))
OK = encode(((b"grpc-status", b"0"),))
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_HOP_BY_HOP = ("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding")


class BrokenError(Exception):
    """The client broke the protocol: the connection ends with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """A whole frame."""
    return head_of(kind, flags, number, len(payload)) + payload


def head_of(kind: int, flags: int, number: int, size: int) -> bytes:
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, number)


def window_of(number: int, more: int) -> bytes:
    return frame(WINDOW, 0, number, more.to_bytes(4, "big"))


def unpadded(payload: memoryview) -> memoryview:
    if not payload or payload[0] >= len(payload):
        raise BrokenError(PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def unpacked(message: memoryview, encoding: str, most: int) -> memoryview | None:
    """A compressed message, or None when it is none or too large."""
    if encoding == "identity":
        return None
    unpack = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        found = unpack.decompress(message, most + 1)
    except zlib.error:
        return None
    return memoryview(found) if len(found) <= most and unpack.eof else None


def trailers(status: grpc.StatusCode, details: str) -> bytes:
    said = quote(details[:4000], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return encode(((b"grpc-status", str(status.value[0]).encode()), (b"grpc-message", said.encode())))


def read_head(headers: Headers) -> Head:
    """What a block of headers says of a call. BrokenError when it is of none."""
    told = dict(headers)
    if not headers or b":path" not in told:
        return Head("", (), None)  # trailers
    if told.get(b":method") != b"POST" or not told.get(b"content-type", b"").startswith(b"application/grpc"):
        raise BrokenError(PROTOCOL_ERROR, "no gRPC call")
    metadata: Metadata = tuple(
        (key, value.decode("latin-1"))
        for key, value in ((name.decode("latin-1"), value) for name, value in headers)
        if not key.startswith(":") and key not in _HOP_BY_HOP
    )
    encoding = told.get(b"grpc-encoding", b"identity").decode("latin-1")
    return Head(told[b":path"].decode("latin-1"), metadata, _timeout_s(told.get(b"grpc-timeout")), encoding)


def _timeout_s(text: bytes | None) -> float | None:
    if text is None:
        return None
    number, unit = text[:-1].decode("latin-1"), text[-1:].decode("latin-1")
    if not number.isascii() or not number.isdecimal() or len(number) > 8 or unit not in _UNITS_S:
        raise BrokenError(PROTOCOL_ERROR, "no timeout")
    return int(number) * _UNITS_S[unit]
