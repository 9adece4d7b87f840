"""Keeps the machine as awake as serving does while latencies are measured.

A worker that is measured alone finds its processor asleep before every run and pays for the waking; when served, other
workers, the gateway and their messages keep it awake (seen on a virtual machine: runs of 0.3 ms of CPU time took 10 to
20 % less in service than alone). So one light process per core wakes up about a thousand times a second.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST_PROCESSES = 4
WORK_S = 0.0003
SLEEP_S = 0.001


@contextmanager
def company() -> Iterator[None]:
    """Background wake-ups for the time of the block."""
    context = multiprocessing.get_context("spawn")
    count = min(MOST_PROCESSES, os.cpu_count() or 1)
    processes = [context.Process(target=_wake, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _wake(parent: int) -> None:
    """Until the parent ends, however it ends."""
    try:
        while os.getppid() == parent:
            until = time.perf_counter() + WORK_S
            while time.perf_counter() < until:
                pass
            time.sleep(SLEEP_S)
    except KeyboardInterrupt:
        return
