"""Draws the requests that are audited: evenly, as many as the plan has capacity for, and not predictably by clients."""

from __future__ import annotations

import hashlib


class AuditDraw:
    """Draws one request out of each 1 / `share`, at a place that a keyed hash of the draw's number gives.

    So the number of audits never is off by more than one, and a client that does not know `key` cannot tell which
    requests are audited.
    """

    def __init__(self, share: float, key: bytes) -> None:
        self._share, self._key = share, key
        self._seen = 0  # requests so far
        self._drawn = 0
        self._next = self._place(0)

    def draw(self) -> bool:
        """True if the next request is audited."""
        number = self._seen
        self._seen += 1
        if number < self._next:
            return False
        self._drawn += 1
        self._next = self._place(self._drawn)
        return True

    def _place(self, draw: int) -> int:
        """Number of the request that a draw falls on, within the draw-th part of 1 / share requests."""
        digest = hashlib.blake2b(draw.to_bytes(8, "big"), digest_size=8, key=self._key).digest()
        return int((draw + int.from_bytes(digest, "big") / 2**64) / self._share)


class RateLimit:
    """Lets through at most `rate_per_s` in the long run, and `burst` at once (a token bucket)."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._tokens, self._at_s = burst, 0.0

    def take(self, now_s: float) -> bool:
        """True if one more is let through at a time of the monotonic clock."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
