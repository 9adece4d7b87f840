"""When a resource is reconciled: at once the first time, then once a change has been stable for the debounce time.

A state machine without a clock: callers pass the time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_RETRY_S, MAX_RETRY_S = 5.0, 600.0
RESYNC_S = 3600.0  # period of reconciliation without a change: objects may be deleted, certificates expire


@dataclass
class Pace:
    """Debounce and exponential backoff of one resource.

    States are fingerprints; report results to `done` or `failed`.
    """

    debounce_s: float
    _latest: str | None = None  # fingerprint seen last
    _since_s: float = 0.0  # time at which `_latest` was first seen
    _tried: str | None = None  # fingerprint that was reconciled last
    _next_s: float = 0.0  # time at which `_tried` is reconciled again
    _failures: int = 0
    runs: int = 0  # how often something was due

    def due(self, seen: str, now_s: float) -> bool:
        """True if the state with fingerprint `seen` is to be reconciled now."""
        if seen != self._latest:
            self._latest, self._since_s = seen, now_s
        if seen == self._tried:
            is_due = now_s >= self._next_s
        else:
            is_due = self._tried is None or now_s - self._since_s >= self.debounce_s
        self.runs += is_due
        return is_due

    def reset(self) -> None:
        """Reconcile at the next call of `due`, whatever the state."""
        self._tried = None

    def done(self, now_s: float) -> None:
        """Reconciliation succeeded."""
        self._tried, self._failures, self._next_s = self._latest, 0, now_s + RESYNC_S

    def failed(self, now_s: float) -> float:
        """Reconciliation failed; returns the seconds until the retry (sooner if the state changes)."""
        self._failures = self._failures + 1 if self._tried == self._latest else 1
        pause_s = float(min(MAX_RETRY_S, MIN_RETRY_S * 2 ** min(self._failures - 1, 10)))
        self._tried, self._next_s = self._latest, now_s + pause_s
        return pause_s
