"""How much memory a process may use."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def machine_memory_bytes() -> int:
    """This machine's memory, or the cgroup's limit if that is lower; bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total


def process_memory_bytes() -> int:
    """The limit on this process's data (RLIMIT_DATA), or the machine's memory if that is lower; bytes."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return machine_memory_bytes() if limit == resource.RLIM_INFINITY else min(limit, machine_memory_bytes())
