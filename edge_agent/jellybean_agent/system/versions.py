"""Which versions understand each other: a process talks to its own protocol's neighbours and to no others."""

from __future__ import annotations

PROTOCOL = 2  # raise it with any change of meaning on the wire; 1 did not say its number
PROTOCOL_KEY = "jellybean-protocol"  # metadata of calls


def metadata() -> tuple[tuple[str, str], ...]:
    """What every call of ours says."""
    return ((PROTOCOL_KEY, str(PROTOCOL)),)


def refusal(who: str, theirs: int) -> str:
    """Why `who` is of a version too far away; empty when it is not."""
    if abs(theirs - PROTOCOL) <= 1:
        return ""
    older = "it" if theirs < PROTOCOL else "this process"
    return (
        f"{who} speaks protocol {theirs}; this process speaks {PROTOCOL}, and understands {PROTOCOL - 1} to "
        f"{PROTOCOL + 1}: update {older} first"
    )


def stated(value: str | bytes | None) -> int:
    """The protocol that a call's metadata states; 1 where they state none."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or "1"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
