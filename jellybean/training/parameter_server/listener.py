"""Accepts the connections of a server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from jellybean.training.parameter_server.channel import Channel, ConnectionLostError, accept

_HANDSHAKES = 64  # at once; further connections wait in the socket's queue


class Listener:
    """Accepts connections in a thread, and serves each that has the key in one of its own.

    The number of those that have not proved the key is limited: strangers take no more threads than that.
    """

    def __init__(self, address: str, key: bytes, serve: Callable[[Channel], None]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self._key, self._serve = key, serve
        self._handshakes = threading.Semaphore(_HANDSHAKES)
        threading.Thread(target=self._accept, name="parameter server", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which it listens; the system chooses it."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._handshakes.acquire()
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._begin, args=(connected,), daemon=True).start()

    def _begin(self, connected: socket.socket) -> None:
        try:
            channel = accept(connected, self._key)
        except ConnectionLostError:
            return  # a stranger
        finally:
            self._handshakes.release()
        self._serve(channel)
