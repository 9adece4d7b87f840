"""Processes of a run: started, described and ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from jellybean.serving.local.log_files import log_lines, open_log
from jellybean.serving.run_processes import start_ticks
from jellybean.serving.run_state import ProcessState
from jellybean_agent import printable

_LOG_LINES = 8
_AT_DEATH_S = 3.0  # a log that was written so shortly before a death may say why
_FROM_OUTSIDE = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
)  # another process sent it
_STAT_EXIT_CODE = 49  # field of /proc/PID/stat after the command: exit_code, the 52nd of all (proc_pid_stat(5))
_PIDFD_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of linux/pidfd.h: mask, cgroup, ids, exit_code
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)


class Child(subprocess.Popen[bytes]):
    """A process that may outlive the one that started it."""

    def __del__(self) -> None:
        """Suppress Popen's warning about a child that still runs, which is intended with `--detach`."""


def spawn(command: Sequence[str], directory: Path, log: Path, *, append: bool = False) -> Child:
    """Start a process in a session of its own; output goes to `log`, which is truncated unless `append`."""
    with open_log(log, append=append) as file:
        return Child(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd=directory)


def process_state(name: str, child: Child, command: Sequence[str], address: str, log: Path) -> ProcessState:
    """The state file's entry of a process. psutil.Error when it has ended already."""
    return ProcessState(name, child.pid, start_ticks(child.pid), address, str(log), tuple(command))


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


def describe_end(name: str, code: int | None, log: Path, died_unix_s: float | None = None) -> str:
    """How a process ended (`code`: its exit status, None: unknown), with the last lines of its log.

    The lines are left out where they cannot be about the end: after a signal from outside, which the process cannot
    report, and with an unknown status where the last ones are older than the death (`died_unix_s`: by default now).
    """
    how = "has died, it is not known how" if code is None else f"ended with status {code}"
    if code is not None and code < 0:
        how = f"was killed by {_signal_name(-code)}"
    is_from_outside = code is not None and -code in _FROM_OUTSIDE
    died_unix_s = time.time() if died_unix_s is None else died_unix_s
    try:
        lines = [printable(line) for line in log_lines(log)[-_LOG_LINES:]]
        is_old = code is None and log.stat().st_mtime < died_unix_s - _AT_DEATH_S
    except OSError:
        lines, is_old = [], False
    if not lines:
        return f"{name} {how}; its log is empty"
    if is_from_outside or is_old:
        return f"{name} {how}; {log} does not say why"
    text = "".join(f"\n    {line}" for line in lines)
    return f"{name} {how}; the end of {log}:{text}"


def exit_code(pid: int, descriptor: int) -> int | None:
    """Exit status of a process that has died, whoever started it; negative: its signal. None if it is not known.

    `descriptor`: of the process (pidfd), open since before its death. A zombie's status is in /proc; Linux 6.15 and
    later tell that of a process which its parent has reaped.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[_STAT_EXIT_CODE]))
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, *[0] * 13)
    with contextlib.suppress(OSError, ValueError):
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
        mask, *_, status = _PIDFD_INFO.unpack(info)
        if mask & _PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
