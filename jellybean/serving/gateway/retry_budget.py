"""How much of what is lost may be tried again."""

from __future__ import annotations


class RetryBudget:
    """Tokens: a retry takes one, a new request brings `share` of one, `most` are kept, and there at first.

    So a worker that dies with all that it has in hand costs nobody his answer, while a fleet that loses everything all
    the time gets 1 + `share` of its load and not a multiple.
    """

    def __init__(self, most: int, share: float) -> None:
        self._most, self._share = float(most), share
        self._tokens = self._most

    def earn(self) -> None:
        """A new request has come."""
        self._tokens = min(self._most, self._tokens + self._share)

    def take(self, reserve: float = 0.0) -> bool:
        """Whether one more retry is allowed; it then counts. `reserve`: share of the most that must be left."""
        if self._tokens < 1.0 + reserve * self._most:
            return False
        self._tokens -= 1.0
        return True
