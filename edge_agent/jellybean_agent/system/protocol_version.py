"""Which versions understand each other: a process talks to its own protocol's neighbours and to no others."""

from __future__ import annotations

PROTOCOL_VERSION = 2  # increased with every incompatible change of the wire format; version 1 sent no number
PROTOCOL_VERSION_KEY = "jellybean-protocol"  # metadata of calls


def protocol_metadata() -> tuple[tuple[str, str], ...]:
    """What every call of ours says."""
    return ((PROTOCOL_VERSION_KEY, str(PROTOCOL_VERSION)),)


def protocol_mismatch(who: str, theirs: int) -> str:
    """Why `who` is of a version too far away; empty when it is not."""
    if abs(theirs - PROTOCOL_VERSION) <= 1:
        return ""
    older = "it" if theirs < PROTOCOL_VERSION else "this process"
    return (
        f"{who} speaks protocol {theirs}; this process speaks {PROTOCOL_VERSION}, and understands "
        f"{PROTOCOL_VERSION - 1} to {PROTOCOL_VERSION + 1}: update {older} first"
    )


def stated_protocol(value: str | bytes | None) -> int:
    """The protocol that a call's metadata states; 1 where they state none."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or "1"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
