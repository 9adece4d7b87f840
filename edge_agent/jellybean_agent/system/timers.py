"""The event loop's clock, and an exact timer: asyncio rounds its own timers up to milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


def loop_s() -> float:
    """Now, by the event loop's clock, which is CLOCK_MONOTONIC."""
    return asyncio.get_running_loop().time()


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Times(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """One timer (a Linux timerfd) that holds one callback at a time, from `open` to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callback: Callable[[], None] | None = None
        self._times = _Times()
        self._file = -1

    def open(self) -> None:
        """Open the timer. OSError where the system has none left."""
        self._file = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._loop.add_reader(self._file, self._due)

    def call_at(self, at_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` at CLOCK_MONOTONIC second `at_s`, instead of the callback set before. Nothing once closed."""
        if self._file < 0:
            return
        self._callback = callback
        value = self._times.value
        value.seconds, value.nanoseconds = divmod(max(1, int(at_s * 1e9)), 1_000_000_000)
        if _LIBC.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(self._times), None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _due(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
            callback, self._callback = self._callback, None
            if callback is not None:
                callback()

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
