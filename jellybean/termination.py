"""SIGTERM as an exception, so that a command that is told to end cleans up as after Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TerminatedError(KeyboardInterrupt):
    """SIGTERM while a command works: ends it as Ctrl-C does, with another exit status."""


class _Handling:
    """The process's handler of SIGTERM while blocks are open, which may end in any order.

    `users`: open blocks. `before`: the handler before the first one, which the last one restores.
    """

    def __init__(self) -> None:
        self.users = 0
        self.before: Callable[[int, Any], Any] | int | None = signal.SIG_DFL

    def begin(self) -> None:
        if self.users == 0:
            self.before = signal.signal(signal.SIGTERM, _terminate)
        self.users += 1

    def end(self) -> None:
        self.users -= 1
        if self.users == 0:
            signal.signal(signal.SIGTERM, self.before)


_HANDLING = _Handling()


@contextmanager
def terminated_as_interrupted(*, replaces: bool = False) -> Iterator[None]:
    """Raise TerminatedError on SIGTERM. No effect outside the main thread.

    Blocks may overlap: a run that stays in the foreground begins in the block of the progress bar of its start, and
    outlives it. `replaces`: also where the process has a handler of its own for SIGTERM.
    """
    here = signal.getsignal(signal.SIGTERM)
    is_free = replaces or here == signal.SIG_DFL or here is _terminate
    if threading.current_thread() is not threading.main_thread() or not is_free:
        yield
        return
    _HANDLING.begin()
    try:
        yield
    finally:
        _HANDLING.end()


def _terminate(_number: int, _frame: object) -> None:
    raise TerminatedError
