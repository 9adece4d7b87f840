"""How many files and connections a process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_open_file_limit() -> int:
    """Raise the soft limit on open files to the hard one, where the system lets us; returns the soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS: it may not be unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
