"""An endpoint of a pipe whose connection is in memory."""

from __future__ import annotations

import socket
from typing import Any

from jellybean_agent.relay.endpoints import Endpoint, Sink, read_buffer
from tests.support.memory_connection import MemoryTransport

BUFFER = read_buffer()


class _NoSocket:
    """In place of the socket, whose options are set."""

    def setsockopt(self, *_option: Any) -> None:
        raise OSError("there is no socket")


class MemoryEndpoint:
    """An endpoint, and the other end of its connection. `connected`: a socket whose options the endpoint sets."""

    def __init__(self, sink: Sink | None = None, connected: socket.socket | None = None) -> None:
        self.endpoint = Endpoint(sink or Sink(), BUFFER)
        no_socket: socket.socket = _NoSocket()  # type: ignore[assignment]
        self.transport = MemoryTransport(self.endpoint, connected or no_socket)
        self.transport.heeds_pauses = False
        self.transport.connect()

    def take(self) -> bytes:
        """What was sent since the last call."""
        return self.transport.take()

    def receive(self, data: bytes) -> None:
        """The other end sends bytes."""
        self.transport.receive(data)
