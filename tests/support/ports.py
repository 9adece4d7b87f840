"""TCP ports of this machine that tests listen on."""

from __future__ import annotations

import os
import random
import socket

# Below the ports that the system itself chooses (Linux: from 32768): none of these is taken by a connection, or by a
# server that asks for any port, before the process listens for which a test looked for it. Above the first ones that
# relays and tunnels of rendered pods listen on (`deployed_plan.REMOTE_PORT`), each on an address of its own.
_PORTS = range(20_100, 30_000)
_WORKERS = 16  # of a parallel run, each with ports of its own
_given: set[int] = set()


def free_port() -> int:
    """A TCP port that nothing listens on now, at any address, and that no test beside this one gets."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = set(_PORTS[worker % _WORKERS :: _WORKERS])
    if own <= _given:
        _given.clear()
    left = sorted(own - _given)
    for port in random.SystemRandom().sample(left, len(left)):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise AssertionError(f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are in use")
