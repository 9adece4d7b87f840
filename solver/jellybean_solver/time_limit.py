"""The limit of the work in progress: one deadline that all searches, programs and simulations inside it share.

A command sets it once. What has a limit of its own ends at the earlier of both, and what has none ends with the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jellybean_solver.outcome import Clock

_UNLIMITED = Clock()
_LIMIT: ContextVar[Clock] = ContextVar("limit of the work", default=_UNLIMITED)


def work_limit() -> Clock:
    """The clock of the work in progress; one without a limit if none is set. Other threads have none."""
    return _LIMIT.get()


@contextmanager
def limited_work(seconds: float | None, now: Callable[[], float]) -> Iterator[Clock]:
    """Limit the block to so many seconds, and to what is left of the work around it; None: to that alone."""
    with limited_to(_UNLIMITED if seconds is None else Clock(now, now() + seconds)) as clock:
        yield clock


@contextmanager
def limited_to(clock: Clock) -> Iterator[Clock]:
    """As `limited_work`, with a clock, such as a share of the time that is left."""
    least = earlier(work_limit(), clock)
    token = _LIMIT.set(least)
    try:
        yield least
    finally:
        _LIMIT.reset(token)


def earlier(clock: Clock, other: Clock) -> Clock:
    """The clock that has less time left."""
    left_s, other_s = clock.left(), other.left()
    if left_s is None or (other_s is not None and other_s <= left_s):
        return other
    return clock
