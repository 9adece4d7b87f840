"""How a command's process ends after Ctrl-C or SIGTERM: soon, whatever it is doing, with its child processes gone.

A signal raises an exception between two steps of the main thread. Where a step takes seconds (a library's call, a
thread that is waited for), a thread of its own ends the process instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

from jellybean.termination import interrupts_blocked

ENDING_S = 0.7  # from a signal to the end of the process: leaves the exception time to clean up within a second
EXIT_BY_SIGNAL = 128  # plus the signal's number, as in a shell


@contextmanager
def ended_soon_after_signals(last_words: Callable[[], None], ending_s: float = ENDING_S) -> Iterator[None]:
    """End the process `ending_s` after SIGINT or SIGTERM if the block has not ended by then; only in the main thread.

    `last_words`: prints that the command was interrupted. Python writes a signal's number to a socket as it comes, also
    while a library's call holds up the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = socket.socketpair()
    write.setblocking(False)
    before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    ended = threading.Event()

    def watch() -> None:
        while number := read.recv(1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                if not ended.wait(ending_s):
                    last_words()
                    end_process(EXIT_BY_SIGNAL + number[0])
                return

    watcher = threading.Thread(target=watch, name="end after a signal", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        write.close()
        watcher.join()
        read.close()


def end_at_once_after_signals(status: int) -> None:
    """Call once a command has ended: a signal can only end its process sooner from now on, with the command's status.

    While Python waits for threads, Ctrl-C would print a traceback of them.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end_process(status))


def ignore_signals() -> None:
    """The last step of a process: Python then puts the signals' defaults back, which would kill it without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_process(status: int) -> NoReturn:
    """End this process at once, with the child processes that it started: no thread is waited for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed by who reads it
            stream.flush()
    for child in _children():
        with suppress(OSError):  # ended meanwhile
            os.kill(child, signal.SIGKILL)
    os._exit(status)


def end_interrupted(status: int) -> NoReturn:
    """End an interrupted command: what it registered for its end runs, other threads are not waited for."""
    ignore_signals()
    for child in multiprocessing.active_children():
        child.kill()
    atexit._run_exitfuncs()
    end_process(status)


def _children() -> list[int]:
    """Process ids of the direct children in this process's group: those of runs that go on have one of their own.

    Without multiprocessing's tracker of resources, which frees what is left of it and then ends.
    """
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    found: list[int] = []
    with suppress(OSError):
        for listed in Path("/proc/self/task").glob("*/children"):
            found += map(int, listed.read_text(encoding="ascii").split())
    group = os.getpgrp()
    return [child for child in found if child != tracker and _group_of(child) == group]


def _group_of(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except OSError:
        return None


@contextmanager
def child_process() -> Iterator[ProcessPoolExecutor]:
    """A pool of one new process (spawned). An exception in the block kills it, and it ends with this process.

    Ctrl-C, which a terminal sends to it as well, does not end it amid its imports, with a traceback.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with interrupts_blocked():
        pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent_process)
        pool.submit(int)  # starts the process, with the signals blocked
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_parent_process() -> None:
    """In a child of `child_process`: ignore Ctrl-C, and end as soon as the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
