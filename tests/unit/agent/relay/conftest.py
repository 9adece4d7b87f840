"""The socket that connections in memory set options of."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.unit.agent.relay.pipe_connections import Connection


@pytest.fixture(scope="module")
def connection_socket() -> Iterator[None]:
    """`Connection.socket` is a real one, for the options that are set."""
    first, second = socket.socketpair()
    with first, second:
        Connection.socket = first
        yield
