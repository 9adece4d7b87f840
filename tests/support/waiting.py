"""Waiting for a condition that other processes, threads or tasks bring about, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 60.0
_PAUSE_S = 0.02


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until the condition holds. AssertionError after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"the condition did not hold within {timeout_s:g} s"
        time.sleep(_PAUSE_S)


async def wait_until_async(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """`wait_until` that lets other tasks of the event loop run meanwhile."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"the condition did not hold within {timeout_s:g} s"
        await asyncio.sleep(_PAUSE_S)
