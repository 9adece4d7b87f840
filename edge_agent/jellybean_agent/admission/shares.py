"""A limit that peers share, so that none of them can take all of it.

A peer may take more while it holds less than `DOMINANCE` times what is free: dynamic thresholds
(Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). One
peer alone gets 7/8 of the limit, two get 7/15 each, and something is left for the next one, without a
setting per peer.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

DOMINANCE = 7  # a larger factor gives a peer alone more of the limit, and leaves less for the first call of another one


def fits_share(held: int, amount: int, free: int) -> bool:
    """True if a peer that holds `held` of a limit may have `amount` more of what is free.

    The threshold holds for each unit, so for the last one too: a large amount leaves as much as many small ones.
    """
    return amount <= free and held + amount - 1 < DOMINANCE * (free - amount + 1)


class SharedLimit:
    """At most `total` in all. The privileged may use `reserve` besides, where they have their share of the rest."""

    __slots__ = ("_shares", "held", "reserve", "reserved", "total")

    def __init__(self, total: int, reserve: int = 0) -> None:
        self.total, self.reserve = total, reserve
        self.held = self.reserved = 0  # of `total`, and of the reserve
        self._shares: WeakValueDictionary[str, PeerShare] = WeakValueDictionary()

    def share_of(self, peer: str) -> PeerShare:
        """The share of a peer, one object while somebody keeps it."""
        share = self._shares.get(peer)
        if share is None:
            share = self._shares[peer] = PeerShare(self, peer)
        return share

    def largest_share(self) -> PeerShare | None:
        """The share that holds most; None if nothing is held."""
        share = max(self._shares.values(), key=lambda share: share.held, default=None)
        return share if share is not None and share.held else None


class PeerShare:
    """What one peer holds of a limit, and of its reserve."""

    __slots__ = ("__weakref__", "_limit", "held", "peer", "reserved")

    def __init__(self, limit: SharedLimit, peer: str) -> None:
        self._limit, self.peer = limit, peer
        self.held = self.reserved = 0

    def take(self, amount: int = 1, *, is_privileged: bool = False) -> bool:
        """Take some of the limit; False, and nothing is taken, where the peer may not have as much."""
        limit = self._limit
        free = limit.total - limit.held
        if amount <= free and self.held + amount - 1 < DOMINANCE * (free - amount + 1):  # `fits_share`, for each call
            limit.held += amount
            self.held += amount
            return True
        if is_privileged and fits_share(self.reserved, amount, limit.reserve - limit.reserved):
            limit.reserved += amount
            self.reserved += amount
            return True
        return False

    def may_take(self, amount: int = 1, others: int = 0) -> bool:
        """True if the peer may have more. `others`: held besides, of nobody's share."""
        return fits_share(self.held, amount, self._limit.total - self._limit.held - others)

    def add(self, amount: int = 1) -> None:
        """Count what the peer holds, whether it may or not."""
        self._limit.held += amount
        self.held += amount

    def give(self, amount: int = 1) -> None:
        """Return what was taken, to the reserve first."""
        limit = self._limit
        if self.reserved:
            back = min(self.reserved, amount)
            limit.reserved -= back
            self.reserved -= back
            amount -= back
        limit.held -= amount
        self.held -= amount

    @property
    def is_dominant(self) -> bool:
        """True if the peer may take nothing although others still may."""
        limit = self._limit
        return limit.held < limit.total and self.held >= DOMINANCE * (limit.total - limit.held)
