"""Bounds how many lines one place in the program may log, so that no peer fills a log.

Lines are counted by their place in the code, and beside it by the peer that they are about. Texts
differ with what a peer sends, places do not: there are only as many as the program has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from jellybean_agent.telemetry.printable import printable

_Key = tuple[str, int, str | None]  # file, line, and the peer: empty for all lines, None for peers beyond the limit
_Place = tuple[str, int]
_EXAMPLE = 200  # characters of a line that was left out


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """Limits of the lines of one place in the code in `interval_s` seconds.

    `lines`: of all. `peer_lines`: about one peer, or with a traceback.
    `peers`: most (place, peer) pairs that are told apart in an interval; further peers count as
    one. Chosen so that the lines of a fleet that starts or a site that is lost fit, and a flood is
    at most 3 KiB/s a place.
    """

    interval_s: float = 10.0
    lines: int = 100
    peer_lines: int = 20
    peers: int = 1024


@dataclass(slots=True)
class _LeftOut:
    """Lines of a place that were left out in this interval."""

    name: str
    level: int
    example: str
    count: int = 0


class RepeatLimit:
    """Counts the lines of a process. Not thread-safe: a logging handler calls it under its lock."""

    def __init__(self, limits: RepeatLimits = RepeatLimits(), clock_s: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock_s = limits, clock_s
        self._counts: dict[_Key, int] = {}
        self._left_out: dict[_Place, _LeftOut] = {}
        self._end_s = 0.0

    def admits(self, record: logging.LogRecord, peer: str) -> bool:
        """True if a line may be logged. Lines below INFO always are: who asks for them wants all.

        `peer`: whom the line is about; empty: nobody in particular.
        """
        if record.levelno < logging.INFO:
            return True
        place = (record.pathname, record.lineno)
        bounds: dict[_Key, int] = {(*place, ""): self._limits.peer_lines if record.exc_info else self._limits.lines}
        if peer:
            is_known = (*place, peer) in self._counts or len(self._counts) < self._limits.peers
            bounds[(*place, peer if is_known else None)] = self._limits.peer_lines
        if any(self._counts.get(key, 0) >= most for key, most in bounds.items()):
            self._leave_out(place, record)
            return False
        for key in bounds:
            self._counts[key] = self._counts.get(key, 0) + 1
        return True

    def _leave_out(self, place: _Place, record: logging.LogRecord) -> None:
        entry = self._left_out.get(place)
        if entry is None:
            entry = _LeftOut(record.name, record.levelno, printable(record.getMessage(), _EXAMPLE))
            self._left_out[place] = entry
        entry.count += 1
        entry.level = max(entry.level, record.levelno)

    def summaries(self, *, at_end: bool = False) -> list[logging.LogRecord]:
        """A line for each place of which lines were left out, once the interval has ended.

        Counting begins anew.

        `at_end`: the process ends, and so does the interval.
        """
        now_s = self._clock_s()
        if now_s < self._end_s and not at_end:
            return []
        left_out = list(self._left_out.values())
        self._counts.clear()
        self._left_out.clear()
        self._end_s = now_s + self._limits.interval_s
        return [_summary(entry) for entry in left_out]


def _summary(entry: _LeftOut) -> logging.LogRecord:
    text = "%d more lines like this one were left out: %s"
    return logging.LogRecord(entry.name, entry.level, "", 0, text, (entry.count, entry.example), None)
