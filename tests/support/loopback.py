"""Loopback addresses of this machine, one for each simulated host: Linux answers on all of 127.0.0.0/8."""

from __future__ import annotations

import itertools
import os

_HOSTS = 254  # of a process: 127.A.B.1 to 127.A.B.254
_PROCESSES = 254 * 256  # A from 1, so that no address is in 127.0.0.0/16
_count = itertools.count()


def loopback_address() -> str:
    """The next address of this process, 127.A.B.C with A and B by its id: processes that run at the same time differ.

    After 254 addresses the first one is returned again, whose host is gone by then.
    """
    high, low = divmod(os.getpid() % _PROCESSES, 256)
    return f"127.{high + 1}.{low}.{next(_count) % _HOSTS + 1}"
