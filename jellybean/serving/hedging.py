"""When a request that is slow is sent a second way. Off unless asked for: a plan has no capacity for it."""

from __future__ import annotations

import math
from collections import deque

from jellybean_agent.errors import PlanViewError

_REMEMBERED, _FIRST, _AGAIN = 512, 64, 32  # answers: kept, needed, between two looks at them
RESERVE = 0.5  # of the budget of retries: it stays for what is lost


class Hedge:
    """After which time: fixed, or that in which such a share of the last answers came.

    Written `0.3` (seconds) or `95%`. PlanViewError when it is neither.
    """

    def __init__(self, text: str) -> None:
        share, percent, rest = text.partition("%")
        try:
            value = float(share)
        except ValueError:
            value = math.nan
        if rest or not (0 < value < 100 if percent else 0 < value < math.inf):
            raise PlanViewError(
                f"--hedge-after {text[:40]!r}: write seconds, as 0.3, or a share of the answers, as 95%"
            )
        self._share = value / 100 if percent else None
        self._after_s = math.inf if percent else value
        self._last: deque[float] = deque(maxlen=_REMEMBERED)
        self._new = 0

    @property
    def after_s(self) -> float:
        """Seconds without an answer; infinite while too few answers have come to tell."""
        return self._after_s

    def answered(self, took_s: float) -> None:
        """An answer has come after so long."""
        if self._share is None:
            return
        self._last.append(took_s)
        self._new += 1
        if len(self._last) >= _FIRST and self._new >= _AGAIN:
            self._new = 0
            self._after_s = sorted(self._last)[min(int(self._share * len(self._last)), len(self._last) - 1)]
