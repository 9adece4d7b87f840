"""What glibc's malloc does with memory that is free again: tensors come and go, and each page anew costs a fault."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 2**26  # at the heap's end, that is not given back
_MAPPED_BYTES = 2**25  # from which on a block is the system's at once; the largest that glibc takes


def keep_freed_memory() -> None:
    """Keep up to 64 MiB for the next tensors instead of giving it back with each. Nothing without glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
