"""The protocol between tunnel and relay, inside TLS, until a connection becomes a byte pipe.

A tunnel begins each connection with a greeting: a kind, the length of a name (two bytes, big-endian) and the name
(UTF-8). The relay answers with one byte, or refuses with a reason.

    offer   OFFER, no name   -> ACCEPTED, then PING each some seconds, answered by PONG, until START
                                START -> STARTED: the pipe begins; or UNREACHABLE: the agent does not answer
    request ASK, peer's name -> STARTED: the pipe begins
    either                   -> REFUSED, length (one byte), reason; then the relay closes

A tunnel sends nothing between a greeting and its answer. Which worker it is, its certificate says.
"""

from __future__ import annotations

RELAY_ALPN = "jellybean-relay/1"
OFFER, ASK = b"O", b"?"
ACCEPTED, PING, PONG, START, STARTED, UNREACHABLE, REFUSED = b"A", b"P", b"p", b"S", b"s", b"U", b"R"
MAX_NAME_BYTES = 1024
_MAX_REASON_BYTES = 255
_HEAD_BYTES = 3


class GreetingError(Exception):
    """The bytes are no greeting."""


def greeting(kind: bytes, name: str = "") -> bytes:
    """The first bytes of a connection. `name`: of the peer that is asked for; empty for the gateway."""
    text = name.encode()
    return kind + len(text).to_bytes(2, "big") + text


def parse_greeting(data: bytes) -> tuple[bytes, str] | None:
    """Kind and name of a greeting; None while it is incomplete. GreetingError if it is none."""
    if data and data[:1] not in (OFFER, ASK):
        raise GreetingError("its first byte is no kind of connection")
    if len(data) < _HEAD_BYTES:
        return None
    size = int.from_bytes(data[1:_HEAD_BYTES], "big")
    if size > MAX_NAME_BYTES:
        raise GreetingError(f"its name has {size} bytes, at most {MAX_NAME_BYTES} are allowed")
    if len(data) < _HEAD_BYTES + size:
        return None
    if len(data) > _HEAD_BYTES + size:
        raise GreetingError("it sends more before it has an answer")
    try:
        return data[:1], data[_HEAD_BYTES:].decode()
    except UnicodeDecodeError as error:
        raise GreetingError("its name is not UTF-8") from error


def refusal(reason: str) -> bytes:
    """The answer that refuses a connection."""
    text = reason.encode()[:_MAX_REASON_BYTES]
    return REFUSED + bytes([len(text)]) + text


def parse_refusal(data: bytes) -> str | None:
    """The reason of a refusal; None while it is incomplete."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    return data[2 : 2 + data[1]].decode("utf-8", "replace")
