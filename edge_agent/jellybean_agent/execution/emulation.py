"""How long a slower device is busy with one run: as long as its profile says, which the plan carries.

The real model runs here first; the rest of the time is waited for. To time it here while serving was tried: whatever
else the machine does shows in such times, and the factor between the machine and the device magnifies it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


class EmulatedDevice:
    """A device that takes `times_s` (mean seconds by requests in the run; size 1 is among them) for one model."""

    def __init__(self, times_s: Mapping[int, float]) -> None:
        self._times_s = dict(sorted(times_s.items()))
        self._sizes = list(self._times_s)

    def run_s(self, requests: int) -> float:
        """Seconds busy with one run. Between two profiled sizes in proportion, as the simulator has it."""
        above = bisect_left(self._sizes, requests)
        if above == len(self._sizes):
            return self._times_s[self._sizes[-1]] * requests / self._sizes[-1]
        high = self._sizes[above]
        if high == requests or above == 0:
            return self._times_s[high]
        low = self._sizes[above - 1]
        part = (requests - low) / (high - low)
        return (1.0 - part) * self._times_s[low] + part * self._times_s[high]
