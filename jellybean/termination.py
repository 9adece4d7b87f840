"""SIGTERM as an exception, so that a command that is told to end cleans up as after Ctrl-C; and both put off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class TerminatedError(KeyboardInterrupt):
    """SIGTERM while a command works: ends it as Ctrl-C does, with another exit status."""


@dataclass(eq=False, slots=True)
class _Handler:
    """A handler of SIGTERM for open blocks, which may end in any order; the last one restores the handler `before`."""

    before: Callable[[int, FrameType | None], object] | int | None
    blocks: int = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        raise TerminatedError


@contextmanager
def terminated_as_interrupted(*, replaces: bool = False) -> Iterator[None]:
    """Raise TerminatedError on SIGTERM. No effect outside the main thread.

    Blocks may overlap: a run that stays in the foreground begins in the block of the progress bar of its start, and
    outlives it. `replaces`: also where the process has a handler of its own for SIGTERM.
    """
    here = signal.getsignal(signal.SIGTERM)
    is_free = replaces or here == signal.SIG_DFL or isinstance(here, _Handler)
    if threading.current_thread() is not threading.main_thread() or not is_free:
        yield
        return
    handler: _Handler = here if isinstance(here, _Handler) else _Handler(here)
    signal.signal(signal.SIGTERM, handler)
    handler.blocks += 1
    try:
        yield
    finally:
        handler.blocks -= 1
        is_installed = signal.getsignal(signal.SIGTERM) is handler
        if is_installed and handler.blocks == 0:
            signal.signal(signal.SIGTERM, handler.before)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM in this thread, so that a process that is started in the block starts with them blocked.

    So Ctrl-C ends no child amid its imports, with a traceback; it ignores them as soon as it runs.
    A signal for this process waits until the block has ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_held() -> Iterator[None]:
    """Put off SIGINT and SIGTERM until the block has ended. No effect outside the main thread.

    For steps that an exception must not part, such as starting a child process and noting that it was started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came_number in dict.fromkeys(came):
            signal.raise_signal(came_number)
