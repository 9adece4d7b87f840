"""The ports that a relay or a tunnel listens on."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.relay.endpoints import Endpoint

_BACKLOG = 1024


class Listeners:
    """Ports that are listened on, until `close`."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def open(self, accept: Callable[[], Endpoint], host: str, port: int) -> None:
        """Listen on a port; `accept` makes the end of a new connection. If it cannot: PlanViewError, and all close."""
        try:
            server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=_BACKLOG)
            self._servers.append(server)
            if not server.sockets:  # asyncio skips an address for which it gets no socket, without an error
                socket.socket().close()  # raises it if too many files are open
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        except (OSError, UnicodeError) as error:
            self.close()
            raise PlanViewError(f"cannot listen on {host}:{port}: {describe_error(error)}") from error

    def close(self) -> None:
        """Accept nothing more."""
        for server in self._servers:
            server.close()
