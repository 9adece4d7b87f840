"""Processes of a run: started, described and ended."""

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
    """A process that may outlive the one that started it."""

    def __del__(self) -> None:
        """Suppress Popen's warning about a child that still runs, which is intended with `--detach`."""


def spawn(command: Sequence[str], directory: Path, log: Path, *, append: bool = False) -> Child:
    """Start a process in a session of its own; output goes to `log`, which is truncated unless `append`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab" if append else "wb") as file:
        return Child(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd=directory)


def process_state(name: str, child: Child, command: Sequence[str], address: str, log: Path) -> ProcessState:
    """The state file's entry of a process. psutil.Error when it has ended already."""
    started = psutil.Process(child.pid).create_time()
    return ProcessState(name, child.pid, started, address, str(log), tuple(command))


def stop(processes: Sequence[psutil.Process], graceful_s: float) -> None:
    """Send SIGTERM to the processes, and SIGKILL to those that still live `graceful_s` seconds later."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _await_end(processes, graceful_s)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _await_end(processes, graceful_s)


def _await_end(processes: Sequence[psutil.Process], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while any(_lives(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    """True if the process runs; False if it has ended or is a zombie (not yet reaped by its parent)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def describe_end(name: str, code: int | None, log: Path) -> str:
    """How a process ended (`code`: its exit status, None: unknown), with the last lines of its log."""
    how = "has died" if code is None else f"ended with status {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    text = "".join(f"\n    {line}" for line in lines)
    return f"{name} {how}; the end of {log}:{text}" if text else f"{name} {how}; its log is empty"
