"""Log files of a run's processes: the current one and the one before, of `MAX_LOG_BYTES` each.

Processes write to a file that they were started with, so it is emptied in place (as logrotate's
`copytruncate`), by the keeper. Every writer appends, and goes on at its new end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 8 * 2**20  # days of a busy gateway, a moment of an editor
_TAIL_BYTES = 64 * 2**10


def open_log(log: Path, *, append: bool) -> BinaryIO:
    """A process's log, to be written at its end; emptied before unless `append`.

    OSError for a link.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(log, flags | (0 if append else os.O_TRUNC), 0o666)
    if not append:
        earlier_log(log).unlink(missing_ok=True)
    return os.fdopen(number, "ab")


def earlier_log(log: Path) -> Path:
    """The file with what was logged before the log was emptied last."""
    return log.with_name(f"{log.name}.1")


def log_lines(log: Path) -> list[str]:
    """The last lines of a log, at most 64 KiB; of the earlier log too if this one is shorter."""
    tail = b""
    for path in (log, earlier_log(log)):
        if len(tail) < _TAIL_BYTES and (path == log or path.exists()):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES + len(tail)))
                tail = file.read(_TAIL_BYTES - len(tail)) + tail
    return tail.decode("utf-8", "replace").splitlines()


def limit_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move a log's lines to `earlier_log` once they are more than `max_bytes`.

    No effect if the log cannot be read.

    Where they cannot be copied (the disk is full) they are lost: the log of a process must not fill
    the disk.
    """
    with contextlib.suppress(OSError):
        number = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(number, "r+b") as file:
            if os.fstat(number).st_size <= max_bytes:
                return
            with contextlib.suppress(OSError):
                _copy_end(file, earlier_log(log), max_bytes)
            os.ftruncate(number, 0)


def _copy_end(file: BinaryIO, target: Path, most: int) -> None:
    """Copy the last `most` bytes of a file, atomically. What is written meanwhile is copied too."""
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    with part.open("xb") as copy:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        shutil.copyfileobj(file, copy)
    part.replace(target)
