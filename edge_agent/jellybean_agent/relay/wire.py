"""The protocol between tunnel and relay, inside TLS, until a connection becomes a byte pipe.

A tunnel begins each connection with a greeting: a kind (one byte), the length of its deployment's ID (one byte), the
length of a name (two bytes, big-endian), the ID and the name (both UTF-8). The relay answers with one byte, or refuses
with a reason.

    offer   OFFER, no name   -> ACCEPTED, then PING each some seconds, answered by PONG, until START
                                START -> STARTED: the pipe begins; or UNREACHABLE: the agent does not answer
    request ASK, peer's name -> STARTED: the pipe begins
    either                   -> OTHER_DEPLOYMENT: the relay has another ID; then it closes
                                REFUSED, length (one byte), reason; then the relay closes

A tunnel sends nothing between a greeting and its answer. Which worker it is, its certificate says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

RELAY_ALPN = "jellybean-relay/1"
OFFER, ASK = b"O", b"?"
ACCEPTED, PING, PONG, START, STARTED, UNREACHABLE = b"A", b"P", b"p", b"S", b"s", b"U"
OTHER_DEPLOYMENT, REFUSED = b"D", b"R"
MAX_DEPLOYMENT_BYTES = 128
MAX_NAME_BYTES = 1024
_MAX_REASON_BYTES = 255
_HEAD = struct.Struct(">cBH")  # kind, bytes of the deployment's ID, bytes of the name


class GreetingError(Exception):
    """The bytes are no greeting."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """How a connection begins. `name`: of the peer that is asked for; empty for the gateway. `deployment`: an ID."""

    kind: bytes
    name: str = ""
    deployment: str = ""

    def encode(self) -> bytes:
        """The first bytes of the connection."""
        deployment, name = self.deployment.encode(), self.name.encode()
        return _HEAD.pack(self.kind, len(deployment), len(name)) + deployment + name


def parse_greeting(data: bytes) -> Greeting | None:
    """The greeting that the bytes are; None while it is incomplete. GreetingError if they are none."""
    if data and data[:1] not in (OFFER, ASK):
        raise GreetingError("its first byte is no kind of connection")
    if len(data) < _HEAD.size:
        return None
    kind, deployment_bytes, name_bytes = _HEAD.unpack_from(data)
    for what, size, limit in (
        ("deployment ID", deployment_bytes, MAX_DEPLOYMENT_BYTES),
        ("name", name_bytes, MAX_NAME_BYTES),
    ):
        if size > limit:
            raise GreetingError(f"its {what} has {size} bytes, at most {limit} are allowed")
    name_start = _HEAD.size + deployment_bytes
    end = name_start + name_bytes
    if len(data) < end:
        return None
    if len(data) > end:
        raise GreetingError("it sends more before it has an answer")
    try:
        return Greeting(kind, data[name_start:].decode(), data[_HEAD.size : name_start].decode())
    except UnicodeDecodeError as error:
        raise GreetingError("its name or deployment ID is not UTF-8") from error


def refusal(reason: str) -> bytes:
    """The answer that refuses a connection."""
    text = reason.encode()[:_MAX_REASON_BYTES]
    return REFUSED + bytes([len(text)]) + text


def parse_refusal(data: bytes) -> str | None:
    """The reason of a refusal; None while it is incomplete."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    return data[2 : 2 + data[1]].decode("utf-8", "replace")
