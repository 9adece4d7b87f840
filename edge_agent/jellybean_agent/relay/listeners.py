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
            server = await self._listen(accept, host, port)
        except (OSError, UnicodeError) as error:
            self.close()
            raise PlanViewError(f"cannot listen on {host}:{port}: {describe_error(error)}") from error
        self._servers.append(server)

    async def _listen(self, accept: Callable[[], Endpoint], host: str, port: int) -> asyncio.Server:
        # asyncio skips an address for which it gets no socket. If none is left, it returns a server
        # without sockets up to Python 3.12, and raises an OSError without an errno from 3.13 on.
        try:
            server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno is None:
                raise _reason_for_no_socket() from error
            raise
        if not server.sockets:
            server.close()
            raise _reason_for_no_socket()
        return server

    def close(self) -> None:
        """Accept nothing more."""
        for server in self._servers:
            server.close()


def _reason_for_no_socket() -> OSError:
    try:
        socket.socket().close()  # raises if too many files are open
    except OSError as error:
        return error
    return OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
