"""When a request that is slow is sent a second way. Off unless asked for: a plan has no capacity for it."""

from __future__ import annotations

import math
from collections import deque

from jellybean_agent import PlanViewError

_REMEMBERED, _FIRST, _AGAIN = 512, 64, 32  # answers: kept, needed, between two looks at them
RESERVE = 0.5  # of the budget of retries: it stays for what is lost


class Hedge:
    """After which time: fixed, or that in which such a share of first attempts was answered of late.

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
        self._last: deque[tuple[float, bool]] = deque(maxlen=_REMEMBERED)  # and whether it takes longer
        self._new = 0

    @property
    def after_s(self) -> float:
        """Seconds without an answer; infinite while too few answers have come to tell."""
        return self._after_s

    def answered(self, took_s: float, is_exact: bool = True) -> None:
        """A first attempt was answered after so long; not `is_exact`: it had no answer yet when a second one had."""
        if self._share is None:
            return
        self._last.append((took_s, not is_exact))
        self._new += 1
        if len(self._last) >= _FIRST and self._new >= _AGAIN:
            self._new = 0
            self._after_s = _within(self._share, sorted(self._last))


def _within(share: float, times: list[tuple[float, bool]]) -> float:
    """The time in which such a share of first attempts is answered (Kaplan and Meier): hedges must not shorten it.

    Where too few were waited for, the longest time that is known.
    """
    waiting = 1.0
    for at, (time_s, is_longer) in enumerate(times):
        if not is_longer:
            waiting *= 1 - 1 / (len(times) - at)
            if waiting < 1 - share:
                return time_s
    return times[-1][0]
