"""Processes that do the same at the same moment.

They are forked, as that takes milliseconds, but by a process of its own with one thread: a test's process has threads,
and what those have locked would stay locked in a forked child.
"""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
import threading
from multiprocessing.synchronize import Barrier

from tests.support.paths import ROOT

TIMEOUT_S = 120.0


def run_at_once(module: str, processes: int, *arguments: str) -> None:
    """Call `module.main(barrier, *arguments)` in so many processes; AssertionError if one of them fails."""
    command = [sys.executable, "-m", "tests.support.at_once", module, str(processes), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def main(module: str, processes: int, arguments: list[str]) -> int:
    """Fork the processes; returns how many of them failed."""
    work = importlib.import_module(module).main
    assert threading.enumerate() == [threading.main_thread()], "a process with threads must not fork"
    context = multiprocessing.get_context("fork")
    barrier: Barrier = context.Barrier(processes)
    children = [context.Process(target=work, args=(barrier, *arguments)) for _ in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return sum(child.exitcode != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
