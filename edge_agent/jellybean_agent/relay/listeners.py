"""The ports that a relay or a tunnel listens on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.relay.endpoints import Endpoint
from jellybean_agent.system.addresses import listening_sockets
from jellybean_protos.addresses import join_address

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 4  # connections that asyncio accepts in one turn, before limits are applied


class Listeners:
    """Ports that are listened on, until `close`."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def open(self, accept: Callable[[], Endpoint], host: str, port: int) -> None:
        """Listen on a port; `accept` makes the end of a new connection. If it cannot: PlanViewError, and all close."""
        loop = asyncio.get_running_loop()
        try:
            for listening in listening_sockets(host, port, _BACKLOG):
                self._servers.append(await loop.create_server(accept, sock=listening, backlog=_ACCEPTED_AT_ONCE))
                listening.listen(_BACKLOG)  # more may wait
        except (OSError, UnicodeError) as error:
            self.close()
            at = join_address(host, port)
            raise PlanViewError(f"cannot listen on {at}: {describe_error(error)}") from error

    def close(self) -> None:
        """Accept nothing more."""
        for server in self._servers:
            server.close()
