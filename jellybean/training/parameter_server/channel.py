"""A connection between a worker and a parameter server: messages of a JSON header and raw bytes, over TCP.

Both ends prove by HMAC that they have the run's key before anything else is read. Nothing is pickled. What follows is
neither encrypted nor authenticated: whoever can change bytes on the way can read and change gradients and weights, so
beyond loopback use a network that you trust. Who else may have the key: `rendezvous.py`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from jellybean.training.errors import RankLostError

Header = dict[str, Any]
_SIZES = struct.Struct("!IQ")  # bytes of the header, bytes of the payload
_MAX_HEADER_BYTES = 64 * 2**20  # the optimizer's states of a model are listed in one
_NONCE_BYTES = 32
_HANDSHAKE_S = 10.0  # limit of a whole handshake, however slowly bytes come
_KEEPALIVE_S = (30, 10, 3)  # idle time before a probe, between probes, probes that may fail: a dead machine, in 1 min


class ConnectionLostError(RankLostError):
    """The other end is gone, or is not one of this run."""


class Channel:
    """One end of a connection. Not for several threads at once, but for `close`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), _KEEPALIVE_S, strict=True):
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        """Send a message."""
        text = json.dumps(header).encode()
        payload = memoryview(payload)
        try:
            self._socket.sendall(_SIZES.pack(len(text), payload.nbytes) + text)
            if payload.nbytes:
                self._socket.sendall(payload)
        except OSError as error:
            raise ConnectionLostError(f"lost the connection to another process: {error}") from error

    def receive(self) -> Header:
        """The header of the next message; `payload_bytes` in it is the size of what `receive_into` must take."""
        header_bytes, payload_bytes = _SIZES.unpack(self._exactly(_SIZES.size))
        if header_bytes > _MAX_HEADER_BYTES:
            raise ConnectionLostError(f"a message begins with {header_bytes:,} bytes of header")
        header = json.loads(self._exactly(header_bytes))
        return {**header, "payload_bytes": payload_bytes}

    def receive_into(self, memory: memoryview, header: Header) -> None:
        """Receive a message's payload, which must fill `memory`."""
        if header["payload_bytes"] != memory.nbytes:
            raise ConnectionLostError(f"{header['payload_bytes']:,} bytes came in place of {memory.nbytes:,}")
        place = 0
        try:
            while place < memory.nbytes:
                count = self._socket.recv_into(memory[place:])
                if not count:
                    raise ConnectionLostError("lost the connection to another process: it closed it")
                place += count
        except OSError as error:
            raise ConnectionLostError(f"lost the connection to another process: {error}") from error

    def close(self) -> None:
        """End the connection; a thread that waits for a message gets an error."""
        with suppress(OSError):  # the other end closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        self.receive_into(memoryview(data), {"payload_bytes": count})
        return data


def accept(connected: socket.socket, key: bytes) -> Channel:
    """The server's end, after the other one has proved that it has the key. ConnectionLostError if it has not."""
    return _handshake(connected, key, name=b"server", other_name=b"worker", proves_first=False)


def connect(address: tuple[str, int], key: bytes, timeout_s: float) -> Channel:
    """Connect to a server of this run. ConnectionLostError if it is not there, or does not have the key."""
    try:
        connected = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise ConnectionLostError(f"the parameter server at {address[0]}:{address[1]} is not there: {error}") from error
    return _handshake(connected, key, name=b"worker", other_name=b"server", proves_first=True)


def _handshake(connected: socket.socket, key: bytes, *, name: bytes, other_name: bytes, proves_first: bool) -> Channel:
    """Exchange nonces and HMACs of them. The server proves itself last, so that strangers learn nothing."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    until_s = time.monotonic() + _HANDSHAKE_S
    try:
        connected.settimeout(_HANDSHAKE_S)
        connected.sendall(nonce)
        theirs = _read(connected, _NONCE_BYTES, until_s)
        proof = hmac.digest(key, name + theirs + nonce, "sha256")
        if proves_first:
            connected.sendall(proof)
        answer = _read(connected, len(proof), until_s)
        if not hmac.compare_digest(answer, hmac.digest(key, other_name + nonce + theirs, "sha256")):
            raise ConnectionLostError("the other process does not have this run's key")
        if not proves_first:
            connected.sendall(proof)
        return Channel(connected)
    except OSError as error:
        connected.close()
        raise ConnectionLostError(f"a connection ended before it began: {error}") from error
    except ConnectionLostError:
        connected.close()
        raise


def _read(connected: socket.socket, count: int, until_s: float) -> bytes:
    data = b""
    while len(data) < count:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake timed out")
        connected.settimeout(left_s)
        piece = connected.recv(count - len(data))
        if not piece:
            raise ConnectionLostError("the other process closed the connection")
        data += piece
    return data
