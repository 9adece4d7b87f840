"""The environment of a run's processes. Without torch, which takes seconds to import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STORE = "JELLYBEAN_TRAINING_STORE"  # environment variable: path of the launcher's store, in a private folder


def started_by_launcher() -> bool:
    """True if torchrun (or our launcher) started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


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
