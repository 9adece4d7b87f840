"""A token bucket that bounds retries to a share of the requests."""

from __future__ import annotations


class RetryBudget:
    """A retry takes a token, a request adds `share` of one; the bucket starts full with `capacity` tokens.

    A worker that dies with all its requests is covered by the bucket, so that none of them fails. A plan that loses
    every attempt gets (1 + `share`) times its load, not a multiple of it.
    """

    def __init__(self, capacity: int, share: float) -> None:
        self._capacity, self._share = float(capacity), share
        self._tokens = self._capacity

    def earn(self) -> None:
        """Count a new request."""
        self._tokens = min(self._capacity, self._tokens + self._share)

    def take(self, reserve: float = 0.0) -> bool:
        """Take a token; False when none is left. `reserve`: share of the capacity that must stay in the bucket."""
        if self._tokens < 1.0 + reserve * self._capacity:
            return False
        self._tokens -= 1.0
        return True
