"""Locks of a project's run, held on files in its state folder: of the launch, and of the state file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jellybean.folders import STATE_FOLDER, shell_text, state_folder
from jellybean.serving.errors import AlreadyRunningError

_NO_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def launch_lock_path(directory: Path) -> Path:
    """The lock file that `up` and `apply` hold while they work."""
    return directory / STATE_FOLDER / "up.lock"


@contextlib.contextmanager
def launch_lock(directory: Path) -> Iterator[None]:
    """One `up` or `apply` at a time per project. AlreadyRunningError when another works.

    FileNotFoundError for a project that was moved or removed: it is not made again.
    """
    if not directory.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
    state_folder(directory)
    try:
        lock = _flock(launch_lock_path(directory), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AlreadyRunningError(f"another `jellybean up {shell_text(directory)}` is starting right now") from error
    try:
        yield
    finally:
        os.close(lock)


def is_launch_locked(directory: Path) -> bool:
    """True while an `up` or `apply` works on the project."""
    path = launch_lock_path(directory)
    try:
        if path.exists():
            os.close(_flock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of the state file; of a project that was removed there is nothing to lock."""
    if not directory.exists():
        yield
        return
    lock = _flock(state_folder(directory) / "run.lock", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _flock(path: Path, operation: int) -> int:
    """Lock a file, which is made if need be; returns its descriptor, which holds the lock until it is closed.

    Where no file can be made (a full or read-only disk) its folder is locked. BlockingIOError as of flock.
    """
    while True:
        lock, at = _open_lock(path)
        try:
            fcntl.flock(lock, operation)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), at.stat()):  # else it was removed meanwhile
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _open_lock(path: Path) -> tuple[int, Path]:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666), path
    except OSError as error:
        if error.errno not in _NO_WRITE:
            raise
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags | os.O_RDONLY), path
    return os.open(path.parent, flags | os.O_RDONLY | os.O_DIRECTORY), path.parent
