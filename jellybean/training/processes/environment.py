"""The environment of a run's processes, and their end with their parent. Without torch, which is slow to import."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Environment variable: path of the launcher's store, in a private folder.
STORE = "JELLYBEAN_TRAINING_STORE"


_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """End this process when its parent does, even if that is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def started_by_launcher() -> bool:
    """True if torchrun (or our launcher) started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def is_started_by_train() -> bool:
    """True in a rank that `jellybean train` has started, which speaks for it."""
    return STORE in os.environ


@contextmanager
def environment_with(values: Mapping[str, str]) -> Iterator[None]:
    """Context with environment variables set for child processes."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
