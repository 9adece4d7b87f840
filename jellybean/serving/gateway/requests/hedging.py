"""When a slow request is hedged: attempted over a second route.

Off by default, because plans have no capacity for it.
"""

from __future__ import annotations

import math
from collections import deque

from jellybean_agent import PlanViewError

_WINDOW = 512  # number of recent latencies from which the quantile is computed
_MIN_SAMPLES = 64  # latencies needed before the first quantile is computed
_UPDATE_EVERY = 32  # the quantile is recomputed after so many latencies
BUDGET_RESERVE = 0.5  # share of the retry budget that hedges leave for lost attempts


class Hedge:
    """The time after which a request is hedged: fixed, or a quantile of recent latencies of first attempts.

    Written `0.3` (seconds) or `95%` (quantile). PlanViewError when it is neither.
    """

    def __init__(self, text: str) -> None:
        number, percent, rest = text.partition("%")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if rest or not (0 < value < 100 if percent else 0 < value < math.inf):
            raise PlanViewError(
                f"--hedge-after {text[:40]!r}: write seconds, as 0.3, or a share of the answers, as 95%"
            )
        self._quantile = value / 100 if percent else None
        self._after_s = math.inf if percent else value
        self._latencies: deque[tuple[float, bool]] = deque(maxlen=_WINDOW)  # (seconds, is censored)
        self._since_update = 0

    @property
    def after_s(self) -> float:
        """Seconds without an answer after which a request is hedged; infinite until enough latencies are known."""
        return self._after_s

    def record(self, latency_s: float, is_exact: bool = True) -> None:
        """Add the latency of a first attempt; not `is_exact`: censored, its hedge answered before it."""
        if self._quantile is None:
            return
        self._latencies.append((latency_s, not is_exact))
        self._since_update += 1
        if len(self._latencies) >= _MIN_SAMPLES and self._since_update >= _UPDATE_EVERY:
            self._since_update = 0
            self._after_s = _censored_quantile(self._quantile, sorted(self._latencies))


def _censored_quantile(quantile: float, latencies: list[tuple[float, bool]]) -> float:
    """Quantile of right-censored latencies, sorted (Kaplan-Meier): hedges must not shorten it.

    The longest latency where too many are censored for the quantile to be known.
    """
    survival = 1.0
    for index, (latency_s, is_censored) in enumerate(latencies):
        if not is_censored:
            survival *= 1 - 1 / (len(latencies) - index)
            if survival < 1 - quantile:
                return latency_s
    return latencies[-1][0]
