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


def available_memory_bytes() -> int:
    """Memory that can be used without swapping, by the machine or by what the cgroup's limit leaves; bytes."""
    left = machine_memory_bytes()
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        left = min(left, int(fields["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        used, limit = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii")) for name in ("current", "max")
        )
        left = min(left, max(0, limit - used))
    return left


def process_memory_bytes() -> int:
    """The limit on this process's data (RLIMIT_DATA), or the machine's memory if that is lower; bytes."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return machine_memory_bytes() if limit == resource.RLIM_INFINITY else min(limit, machine_memory_bytes())


def resident_bytes() -> int:
    """Memory of this process that is in RAM; bytes. Where the system does not say, the most that it has been."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
