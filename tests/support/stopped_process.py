"""A process that stands still, so that its requests stay in flight for as long as a test needs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process (SIGSTOP) within the block. Other processes count it as gone after about 2 s."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)
