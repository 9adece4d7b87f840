"""The headers that open a call: what HTTP/2 (RFC 9113, 8.2 and 8.3) and gRPC ask of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import grpc

from jellybean_agent.rpc.calls import CallHeaders
from jellybean_agent.rpc.frames import trailers
from jellybean_agent.rpc.hpack import Headers, encode_headers

_PSEUDO_HEADERS = frozenset({b":method", b":scheme", b":authority", b":path"})
_REQUIRED = (b":method", b":scheme", b":path")
_OF_CONNECTIONS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_NAME = re.compile(rb"[!-9;-@\[-~]+")  # visible characters but upper case and the colon
_CACHED_NAME_BYTES = 64
_FIELD_BYTES = 128  # what a field takes besides its bytes
_LENGTH = re.compile(rb"0*[0-9]{1,18}")  # no content is longer, and Python converts no text of thousands of digits
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_HOP_BY_HOP = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why headers open no call. `response`: the header block to answer with; empty: the stream is reset."""

    response: bytes = b""


MALFORMED = Refusal()
_NO_POST = Refusal(encode_headers(((b":status", b"405"), (b"allow", b"POST"))))
_NO_GRPC = Refusal(encode_headers(((b":status", b"415"), (b"accept", b"application/grpc"))))


def read_call_headers(headers: Headers) -> CallHeaders | Refusal:
    """The headers of a call, or why they open none. Trailers, which have no pseudo-headers, give an empty path."""
    pseudo, fields = _split(headers)
    names = [_cached_name(name) if len(name) <= _CACHED_NAME_BYTES else _name(name) for name, _ in fields]
    if pseudo is None or "" in names or _has_bad_value([value for _, value in fields]):
        return MALFORMED
    return _call(pseudo, fields, names) if pseudo else CallHeaders("", (), None)


def _split(headers: Headers) -> tuple[dict[bytes, bytes] | None, Headers]:
    """The pseudo-headers, which come first, and the other fields. No pseudo-headers where one is wrong or is twice."""
    pseudo: dict[bytes, bytes] = {}
    for name, value in headers:
        if name[:1] != b":":
            break
        if name not in _PSEUDO_HEADERS or name in pseudo:
            return None, headers
        pseudo[name] = value
    return pseudo, headers[len(pseudo) :]


def _call(pseudo: dict[bytes, bytes], fields: Headers, names: Sequence[str]) -> CallHeaders | Refusal:
    by_name = dict(fields)
    length = by_name.get(b"content-length")
    if not all(map(pseudo.get, _REQUIRED)) or not (length is None or _LENGTH.fullmatch(length)):
        return MALFORMED
    if by_name.get(b"te", b"trailers") != b"trailers":
        return MALFORMED
    if pseudo[b":method"] != b"POST":
        return _NO_POST
    if not by_name.get(b"content-type", b"").startswith(b"application/grpc"):
        return _NO_GRPC
    timeout = by_name.get(b"grpc-timeout")
    timeout_s = None if timeout is None else _timeout_s(timeout)
    if timeout is not None and timeout_s is None:
        return _bad_timeout(timeout)
    return CallHeaders(
        pseudo[b":path"].decode("latin-1"),
        tuple(
            (name, value.decode("latin-1"))
            for name, (_, value) in zip(names, fields, strict=True)
            if name not in _HOP_BY_HOP
        ),
        timeout_s,
        by_name.get(b"grpc-encoding", b"identity").decode("latin-1"),
        None if length is None else int(length[-18:]),
        size=sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields),
    )


def _name(name: bytes) -> str:
    """The name of a field as text; empty for one that a request must not have, or that is not well-formed."""
    return "" if name in _OF_CONNECTIONS or _NAME.fullmatch(name) is None else name.decode("ascii")


_cached_name = lru_cache(1024)(_name)  # clients repeat their names


def _has_bad_value(values: Sequence[bytes]) -> bool:
    """True if a value has CR, LF or NUL. Spaces at its ends are accepted, as gRPC has them in metadata."""
    joined = b"".join(values)
    return b"\r" in joined or b"\n" in joined or b"\0" in joined


def _timeout_s(text: bytes) -> float | None:
    """Seconds of a grpc-timeout; None if it is none."""
    number, unit = text[:-1].decode("latin-1"), text[-1:].decode("latin-1")
    if not number.isascii() or not number.isdecimal() or len(number) > 8 or unit not in _UNITS_S:
        return None
    return int(number) * _UNITS_S[unit]


def _bad_timeout(text: bytes) -> Refusal:
    details = (
        f"{text[:40].decode('latin-1')!r} is no grpc-timeout: write up to 8 digits and one of {' '.join(_UNITS_S)}"
    )
    head = encode_headers(((b":status", b"200"), (b"content-type", b"application/grpc")))
    return Refusal(head + trailers(grpc.StatusCode.INVALID_ARGUMENT, details))
