"""For how long workers were paid: intervals of several workflows that one gateway serves are at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator


def paid_seconds(intervals: Iterable[tuple[float, float, float]]) -> Iterator[tuple[float, float]]:
    """Begin of each interval, and the paid seconds of it that no earlier one has.

    `intervals`: begin and end (Unix times) and paid seconds, in the order of their begins. Where the clock was set back
    within an interval, its seconds are all its own.
    """
    covered_s = -math.inf
    for begin_s, end_s, seconds in intervals:
        length_s = end_s - begin_s
        own = 1.0 if length_s <= 0 else max(0.0, end_s - max(begin_s, covered_s)) / length_s
        if seconds:  # intervals of one of several gateways pay for no worker
            covered_s = max(covered_s, end_s)
        yield begin_s, seconds * own
