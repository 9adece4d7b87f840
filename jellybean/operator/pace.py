"""When a resource is due: at once where it was never looked at, else when what changed has stayed so for a while.

A state machine without a clock: seconds are told to it.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_RETRY_S, MOST_RETRY_S = 5.0, 600.0
RESYNC_S = 3600.0  # for what nobody tells of: objects that were deleted, certificates that end


@dataclass
class Pace:
    """What there is comes as a fingerprint; `due` says whether to work now, `done` and `failed` how that went."""

    debounce_s: float
    _wanted: str | None = None
    _since_s: float = 0.0
    _tried: str | None = None
    _next_s: float = 0.0
    _failures: int = 0

    def due(self, seen: str, now_s: float) -> bool:
        """Whether it is time to work on what is seen now."""
        if seen != self._wanted:
            self._wanted, self._since_s = seen, now_s
        if seen == self._tried:
            return now_s >= self._next_s
        return self._tried is None or now_s - self._since_s >= self.debounce_s

    def again(self) -> None:
        """Whatever comes next is worked on."""
        self._tried = None

    def done(self, now_s: float) -> None:
        """What was wanted is so."""
        self._tried, self._failures, self._next_s = self._wanted, 0, now_s + RESYNC_S

    def failed(self, now_s: float) -> float:
        """It is to be tried again; seconds until then, unless something changes before."""
        self._failures = self._failures + 1 if self._tried == self._wanted else 1
        pause_s = float(min(MOST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10)))
        self._tried, self._next_s = self._wanted, now_s + pause_s
        return pause_s
