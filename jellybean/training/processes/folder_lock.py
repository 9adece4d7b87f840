"""The lock of a run's folder. Without torch, which takes seconds to import."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jellybean.training.errors import TrainingError


@contextmanager
def lock_folder(directory: Path) -> Iterator[None]:
    """Lock the folder against other runs on this machine, which would overwrite each other's checkpoints.

    A process that this one forks (a data worker of a user's DataLoader) does not hold the lock.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _LOCKS.add(handle)
        yield
    except BlockingIOError as error:
        raise TrainingError(f"another jellybean train is running in {directory}: wait for it, or stop it") from error
    finally:
        _LOCKS.discard(handle)
        os.close(handle)


_LOCKS: set[int] = set()  # file descriptors of this process


def _close_locks() -> None:
    """Close what a fork has copied; the lock stays that of the parent, which has the same description open."""
    for handle in _LOCKS:
        os.close(handle)
    _LOCKS.clear()


os.register_at_fork(after_in_child=_close_locks)
