"""The greeting's bytes: what is complete, what is refused, and its limits."""

from __future__ import annotations

import pytest

from jellybean_agent.relay.wire import (
    ASK,
    MAX_DEPLOYMENT_BYTES,
    MAX_NAME_BYTES,
    OFFER,
    Greeting,
    GreetingError,
    parse_greeting,
)


@pytest.mark.parametrize(
    "greeting",
    [
        Greeting(OFFER),
        Greeting(OFFER, deployment="blue"),
        Greeting(ASK, "cloud-1"),
        Greeting(ASK, "Größe", "grün"),
        Greeting(ASK, "n" * MAX_NAME_BYTES, "d" * MAX_DEPLOYMENT_BYTES),
    ],
)
def test_a_greeting_is_read_back_once_it_is_complete(greeting: Greeting) -> None:
    data = greeting.encode()
    assert all(parse_greeting(data[:size]) is None for size in range(len(data)))
    assert parse_greeting(data) == greeting
    with pytest.raises(GreetingError, match="it sends more before it has an answer"):
        parse_greeting(data + b"x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"G", "its first byte is no kind of connection"),
        (OFFER + b"\x81\0\0", "its deployment ID has 129 bytes, at most 128 are allowed"),
        (OFFER + b"\0\x04\x01", "its name has 1025 bytes, at most 1024 are allowed"),
        (OFFER + b"\1\0\0\xff", "its name or deployment ID is not UTF-8"),
        (ASK + b"\0\0\1\xff", "its name or deployment ID is not UTF-8"),
        (ASK + b"\1\0\1\xc3\xa4", "its name or deployment ID is not UTF-8"),
    ],
)
def test_other_bytes_are_refused_at_once(data: bytes, reason: str) -> None:
    with pytest.raises(GreetingError, match=reason):
        parse_greeting(data)
