"""Ends the processes of a run, so that none outlives its test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

_DRAIN_S = 20.0


def end_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Have all drain at once; kill those that do not end in time."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_DRAIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
