"""A connection in memory: what a protocol writes is kept, and bytes are given to it as a socket gives them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

PEER = ("127.0.0.1", 40_000)


class MemoryTransport(asyncio.Transport):
    """The transport of one connection. `unix`: the connected socket of a Unix-socket connection, if it is one.

    `has_ended`: the protocol has half-closed the connection. `is_blocked`: what is written stays in the buffer, and the
    protocol is told to pause above its limit.
    """

    def __init__(self, protocol: asyncio.BaseProtocol, unix: socket.socket | None = None) -> None:
        super().__init__()
        self.protocol, self._unix = protocol, unix
        self.peer = PEER
        self.sent = bytearray()
        self.writes = 0
        self.is_reading = True
        self.is_blocked = False
        self.is_aborted = self.has_ended = False
        self._unsent = bytearray()
        self._received = b""  # of a protocol that does not read
        self.heeds_pauses = True  # False: what was read already reaches a protocol that pauses meanwhile
        self._high, self._is_paused, self._is_closing = 2**16, False, False

    def connect(self) -> None:
        """Establish the connection."""
        self.protocol.connection_made(self)

    def receive(self, data: bytes, pieces: int = 0) -> None:
        """Give bytes to the protocol, `pieces` at a time (0: as many as its buffer takes)."""
        self._received += data
        self._deliver(pieces)

    @property
    def is_delivering(self) -> bool:
        """True if there is something to read, and the protocol reads."""
        is_read = self.is_reading or not self.heeds_pauses
        return bool(self._received) and is_read and not self._is_closing

    def _deliver(self, pieces: int = 0) -> None:
        """Give what was received to the protocol, while it reads."""
        while self.is_delivering:
            protocol: Any = self.protocol
            if not isinstance(protocol, asyncio.BufferedProtocol):
                data, self._received = self._received, b""
                protocol.data_received(data)
                return
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(self._received), pieces or len(self._received))
            buffer[:size] = self._received[:size]
            self._received = self._received[size:]
            protocol.buffer_updated(size)

    def take(self) -> bytes:
        """What was sent since the last call."""
        data = bytes(self.sent)
        self.sent.clear()
        return data

    def unblock(self) -> None:
        """Send what is in the buffer."""
        self.is_blocked = False
        self.sent += self._unsent
        self._unsent.clear()
        if self._is_paused:
            self._is_paused = False
            protocol: Any = self.protocol
            protocol.resume_writing()

    def end(self) -> None:
        """The peer half-closes the connection, which is closed unless the protocol wants it to stay open."""
        protocol: Any = self.protocol
        if not protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None = None) -> None:
        """The connection is lost."""
        self._is_closing = True
        self.protocol.connection_lost(error)

    # -- asyncio.Transport --------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self.writes += 1
        if not self.is_blocked:
            self.sent += data
            return
        self._unsent += data
        if len(self._unsent) > self._high and not self._is_paused:
            self._is_paused = True
            protocol: Any = self.protocol
            protocol.pause_writing()

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._unix
        return self.peer if name == "peername" and self._unix is None else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 2**16 if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        asyncio.get_running_loop().call_soon(self._deliver)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close the connection; what is unsent leaves before."""
        if not self._is_closing:
            self._is_closing = True
            self.sent += self._unsent
            self._unsent.clear()
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            was_closing, self._is_closing = self._is_closing, True
            if not was_closing:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
