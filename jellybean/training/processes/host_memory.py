"""Memory of the process outside of torch's caches."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Return memory that malloc has freed but kept to the system. No effect without glibc.

    Checking and profiling a whole model leaves holes between what stays; a rank would hold them for the whole run.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
