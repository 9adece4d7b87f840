"""Settings of glibc's malloc: freed memory is kept, as each page that is mapped anew costs a page fault."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameter numbers in malloc.h
_KEPT_BYTES = 2**26  # free memory at the end of the heap that is not returned to the system
_MAPPED_BYTES = 2**25  # larger blocks are mapped one by one; glibc's maximum


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory for the next tensors. No effect without glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
