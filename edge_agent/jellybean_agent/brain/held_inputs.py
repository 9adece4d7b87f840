"""The bytes of others' messages that a worker keeps: while they wait for other inputs, for their run, and in it.

Whoever may send messages may send large ones for requests that nobody knows. So bytes count by the process that sent
them, and the one that holds most has to give some up first, whoever has begun the requests that it is for.
"""

from __future__ import annotations

from collections.abc import Iterable

Claim = tuple[str, int]  # sender of a message, bytes of its payload
NO_CLAIM: Claim = ("", 0)


class HeldInputs:
    """At most `limit` bytes (None: any number).

    Invariant: `held` is the sum of `by_sender`, in which all are above 0.
    """

    __slots__ = ("by_sender", "held", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.held = 0
        self.by_sender: dict[str, int] = {}

    def fits(self, size: int) -> bool:
        """True if there is room for so many bytes more."""
        return self.limit is None or self.held + size <= self.limit

    def add(self, claim: Claim) -> None:
        """Count a message."""
        sender, size = claim
        self.held += size
        self.by_sender[sender] = self.by_sender.get(sender, 0) + size

    def give(self, claims: Iterable[Claim]) -> None:
        """These messages are not kept any more."""
        for sender, size in claims:
            self.held -= size
            left = self.by_sender[sender] - size
            if left:
                self.by_sender[sender] = left
            else:
                del self.by_sender[sender]

    def largest(self) -> str | None:
        """The sender that holds most; None if nothing is held."""
        return max(self.by_sender, key=self.by_sender.__getitem__, default=None)
