"""The version of the wire protocol. A process talks to versions that differ by at most one."""

from __future__ import annotations

PROTOCOL_VERSION = 2  # increased with every incompatible change of the wire format; version 1 sent no number
PROTOCOL_VERSION_KEY = "jellybean-protocol"  # metadata of calls


def protocol_metadata() -> tuple[tuple[str, str], ...]:
    """The metadata of every call: this process's version."""
    return ((PROTOCOL_VERSION_KEY, str(PROTOCOL_VERSION)),)


def protocol_mismatch(who: str, theirs: int) -> str:
    """Message that version `theirs` of process `who` is incompatible; empty if it is compatible."""
    if abs(theirs - PROTOCOL_VERSION) <= 1:
        return ""
    older = "it" if theirs < PROTOCOL_VERSION else "this process"
    return (
        f"{who} speaks protocol {theirs}; this process speaks {PROTOCOL_VERSION}, and understands "
        f"{PROTOCOL_VERSION - 1} to {PROTOCOL_VERSION + 1}: update {older} first"
    )


def stated_protocol(value: str | bytes | None) -> int:
    """The version in a call's metadata; 1 where there is none."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or "1"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
