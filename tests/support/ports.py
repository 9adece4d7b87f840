"""TCP ports of this machine that tests listen on, and numbers of other things that runs at the same time share."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections import deque
from pathlib import Path

# Below the ports that the system itself chooses (Linux: from 32768): none of these is taken by a connection, or by a
# server that asks for any port, before the process listens for which a test looked for it. Above the first ones that
# relays and tunnels of rendered pods listen on (`deployed_plan.REMOTE_PORT`), each on an address of its own.
_PORTS = range(20_100, 30_000)
_OWN_PORTS = 1_000  # of a process, before it uses its first one again: several runs find enough


class Registry:
    """Numbers that processes of this user hold: a number is held until the process ends, however it ends.

    A held number is a locked byte of a file: a process needs one open file for all of its numbers, and its children do
    not inherit the locks. POSIX drops all locks of a process on a file once it closes any descriptor of it: this one is
    opened here alone, and never closed.
    """

    def __init__(self, name: str) -> None:
        self._path = Path("/tmp", f"jellybean-test-{name}-{os.geteuid()}")  # whatever TMPDIR a run has
        self._file = -1
        self._process = 0

    def hold(self, number: int) -> bool:
        """Hold the number for this process; False if another process holds it."""
        if self._process != os.getpid():  # a forked child holds nothing
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._process = os.getpid()
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True


_registry = Registry("ports")
_held: deque[int] = deque()  # the least recently returned one first


def free_port() -> int:
    """A TCP port that nothing listens on now, at any address, and that no other process of tests gets until this ends.

    No other test of this process gets it either before `_OWN_PORTS` further ones.
    """
    if len(_held) >= _OWN_PORTS:
        for _ in range(len(_held)):
            _held.rotate(-1)
            if not _is_in_use(_held[-1]):
                return _held[-1]
    first = random.SystemRandom().randrange(len(_PORTS))  # not the tests' generator, which two runs may seed alike
    for number in range(len(_PORTS)):
        port = _PORTS[(first + number) % len(_PORTS)]
        if port not in _held and _registry.hold(port) and not _is_in_use(port):
            _held.append(port)
            return port
    raise AssertionError(f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are in use")


def _is_in_use(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False
