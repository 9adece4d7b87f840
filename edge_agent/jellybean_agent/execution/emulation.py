"""Emulation of a slower device: a run takes as long as on the device, by the device's profile in the plan.

The real model runs first; then the remaining time is spent waiting. Scaling run times measured on this machine would
not work: they vary with its load, and the factor between machine and device magnifies that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CallAt = Callable[[float, Callable[[], None]], None]  # CLOCK_MONOTONIC second, callback: an exact timer


class EmulatedDevice:
    """A device with a profile `times_s`: batch size -> mean seconds of a run. Size 1 is always profiled."""

    def __init__(self, times_s: Mapping[int, float]) -> None:
        self._times_s = dict(sorted(times_s.items()))
        self._sizes = list(self._times_s)

    def run_s(self, requests: int) -> float:
        """Seconds of one run with a batch of `requests`; interpolated between profiled sizes, as in the simulator."""
        above = bisect_left(self._sizes, requests)
        if above == len(self._sizes):
            return self._times_s[self._sizes[-1]] * requests / self._sizes[-1]
        high = self._sizes[above]
        if high == requests or above == 0:
            return self._times_s[high]
        low = self._sizes[above - 1]
        part = (requests - low) / (high - low)
        return (1.0 - part) * self._times_s[low] + part * self._times_s[high]


@dataclass(slots=True)
class EmulatedFinish:
    """The end of a run on an emulated device: the model's answer is read at `due_s` or later, never before.

    `is_late` is set when the model had not answered by then.
    """

    call_at: CallAt
    due_s: float
    is_late: bool = False
