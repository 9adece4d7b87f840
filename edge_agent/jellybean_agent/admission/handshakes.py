"""Unfinished handshakes of one listening socket, shared by addresses."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from jellybean_agent.admission.shares import PeerShare, SharedLimit

TOO_MANY_HANDSHAKES = "too many handshakes"
Connection = TypeVar("Connection", bound=Hashable)


class Handshakes(Generic[Connection]):
    """At most `limit` connections whose handshake is unfinished, shared by addresses.

    A new one is always let in. The oldest of an address with too many ends for it, so that silent
    connections of one address end no handshake of another address, however many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = SharedLimit(limit)
        self._shares: dict[Connection, PeerShare] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._shares)

    def begin(self, connection: Connection, address: str) -> Connection | None:
        """Count a new handshake; returns the connection that has to end for it, if there is one."""
        share, victim = self._limit.share_of(address), None
        if not share.take():
            victim = self._oldest_of(share if share.is_dominant else None)
            self.finish(victim)
            share.add()
        self._shares[connection] = share
        return victim

    def finish(self, connection: Connection) -> None:
        """A handshake is complete, or has failed."""
        share = self._shares.pop(connection, None)
        if share is not None:
            share.give()

    def _oldest_of(self, dominant: PeerShare | None) -> Connection:
        """The oldest handshake of this share, else of the shares that hold most."""
        most = max(share.held for share in self._shares.values())
        return next(
            connection
            for connection, share in self._shares.items()
            if (share is dominant if dominant is not None else share.held == most)
        )
