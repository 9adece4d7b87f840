"""Loopback addresses of this machine, one for each simulated host: Linux answers on all of 127.0.0.0/8."""

from __future__ import annotations

import functools
import itertools
import os

from tests.support.ports import Registry

_HOSTS = 254  # of a process: 127.A.B.1 to 127.A.B.254
_BLOCKS = 254 * 256  # A from 1, so that no address is in 127.0.0.0/16
_registry = Registry("addresses")
_count = itertools.count()


def loopback_address() -> str:
    """The next address of this process, 127.A.B.C: no two processes of tests have the same A and B at the same time.

    After 254 addresses the first one is returned again, whose host is gone by then.
    """
    high, low = divmod(_block(os.getpid()), 256)
    return f"127.{high + 1}.{low}.{next(_count) % _HOSTS + 1}"


@functools.cache
def _block(process: int) -> int:
    """The block of addresses that a process holds: by its id, or the next one that no other process holds."""
    for number in range(_BLOCKS):
        block = (process + number) % _BLOCKS
        if _registry.hold(block):
            return block
    raise AssertionError(f"all {_BLOCKS} blocks of loopback addresses are in use")
