"""The load of one measurement: for how long at a rate, and what of it fits into a time limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jellybean_solver import Arrivals, OutOfTimeError, work_limit

DURATION_S = 30.0
WARMUP_S = 2.0
SETTLE_S = 10.0
# Under a time limit: the shortest window that is worth measuring, and the share of the time for the warm-up and for
# late answers.
LEAST_WINDOW_S, LATE_PART = 1.0, 0.2


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Load of one measurement: `duration_s` at the offered rate, after a warm-up that does not count.

    `arrivals`: None takes the workflow's arrival process. `settle_s`: seconds to wait for answers after the last
    request; more if later answers would still count as in time. `all_rows`: measure accuracy on all held-out rows; rows
    that were not sent in the window are sent after it, if that takes no longer than the window.
    """

    duration_s: float = DURATION_S
    warmup_s: float = WARMUP_S
    seed: int = 0
    arrivals: Arrivals | None = None
    settle_s: float = SETTLE_S
    all_rows: bool = False

    @property
    def end_s(self) -> float:
        """Seconds from the start of the warm-up to the end of the counted window."""
        return self.warmup_s + self.duration_s

    def in_time(self, grace_s: float) -> LoadSettings:
        """With the warm-up, the window and the wait for answers that the time limit of the work leaves.

        `grace_s`: for which later answers still count as in time. OutOfTimeError if less than `LEAST_WINDOW_S` is left.
        """
        left_s = work_limit().left()
        if left_s is None:
            return self
        settle_s = max(grace_s, min(self.settle_s, LATE_PART * left_s))
        warmup_s = min(self.warmup_s, LATE_PART * left_s)
        duration_s = min(self.duration_s, left_s - warmup_s - settle_s)
        if duration_s < LEAST_WINDOW_S:
            needed_s = warmup_s + LEAST_WINDOW_S + settle_s
            raise OutOfTimeError(
                f"nothing was measured: {left_s:.1f} s of the time limit are left, and the shortest window with its "
                f"warm-up and the wait for late answers needs {needed_s:.1f} s; allow more time"
            )
        return replace(self, duration_s=duration_s, warmup_s=warmup_s, settle_s=settle_s)


def at_most(seconds: float) -> float:
    """So many seconds, or what the time limit of the work leaves."""
    left_s = work_limit().left()
    return seconds if left_s is None else min(seconds, left_s)
