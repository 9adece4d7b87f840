"""A limit that peers share, so that none of them can take all of it.

A peer may take more while it holds less than `DOMINANCE` times what is free: dynamic thresholds (Choudhury and Hahne,
"Dynamic queue length thresholds for shared-memory packet switches", 1998). One peer alone gets 7/8 of the limit, two get
7/15 each, and something is left for the next one, without a setting per peer.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

DOMINANCE = 7  # a larger factor gives a peer alone more of the limit, and leaves less for the first call of another one


class SharedLimit:
    """At most `total` in all. Peers with privileges may use `reserve` besides."""

    __slots__ = ("_shares", "held", "reserve", "total")

    def __init__(self, total: int, reserve: int = 0) -> None:
        self.total, self.reserve = total, reserve
        self.held = 0
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def share_of(self, peer: str) -> Share:
        """The share of a peer, one object while somebody keeps it."""
        share = self._shares.get(peer)
        if share is None:
            share = self._shares[peer] = Share(self, peer)
        return share

    def largest_share(self) -> Share | None:
        """The share that holds most; None if nothing is held."""
        share = max(self._shares.values(), key=lambda share: share.held, default=None)
        return share if share is not None and share.held else None


class Share:
    """What one peer holds of a limit."""

    __slots__ = ("__weakref__", "_limit", "held", "peer")

    def __init__(self, limit: SharedLimit, peer: str) -> None:
        self._limit, self.peer = limit, peer
        self.held = 0

    def take(self, amount: int = 1, *, is_privileged: bool = False) -> bool:
        """Take some of the limit; False, and nothing is taken, where the peer may not have as much."""
        limit = self._limit
        free = limit.total - limit.held
        if is_privileged:
            if amount > free + limit.reserve:
                return False
        elif amount > free or self.held >= DOMINANCE * free:
            return False
        limit.held += amount
        self.held += amount
        return True

    def give(self, amount: int = 1) -> None:
        """Return what was taken."""
        self._limit.held -= amount
        self.held -= amount

    @property
    def is_dominant(self) -> bool:
        """True if the peer may take nothing although others still may."""
        limit = self._limit
        return limit.held < limit.total and self.held >= DOMINANCE * (limit.total - limit.held)
