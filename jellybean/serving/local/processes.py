"""Processes of a run: how they are started, watched and ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from jellybean.serving.run_state import ProcessState

_LOG_LINES = 8


class Child(subprocess.Popen[bytes]):
    """A process that may outlive who started it."""

    def __del__(self) -> None:
        """Says nothing: Popen would warn of a child that still runs, which is what `--detach` asks for."""


def spawn(command: Sequence[str], directory: Path, log: Path, *, again: bool = False) -> Child:
    """Start a process in a session of its own. `again`: what its log holds of the last one stays."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab" if again else "wb") as file:
        return Child(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd=directory)


def describe(name: str, child: Child, command: Sequence[str], address: str, log: Path) -> ProcessState:
    """What is written down of a process. psutil.Error when it has ended already."""
    started = psutil.Process(child.pid).create_time()
    return ProcessState(name, child.pid, started, address, str(log), tuple(command))


def stop(processes: Sequence[psutil.Process], graceful_s: float) -> None:
    """SIGTERM, and SIGKILL for those that live `graceful_s` later."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _await_end(processes, graceful_s)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _await_end(processes, graceful_s)


def _await_end(processes: Sequence[psutil.Process], most_s: float) -> None:
    until = time.monotonic() + most_s
    while any(_lives(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    """Whether it still runs; one that only waits to be reaped by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def told(name: str, code: int | None, log: Path) -> str:
    """How a process ended, and the last lines of its log. None: nobody saw its status."""
    how = "has died" if code is None else f"ended with status {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    text = "".join(f"\n    {line}" for line in lines)
    return f"{name} {how}; the end of {log}:{text}" if text else f"{name} {how}; its log is empty"
