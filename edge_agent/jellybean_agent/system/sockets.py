"""Helpers for blocking sockets."""

from __future__ import annotations

import socket


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes. ConnectionError when the other end is gone."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise ConnectionError("the other end is gone")
        view = view[got:]
    return data
