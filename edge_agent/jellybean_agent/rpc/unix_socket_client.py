"""The calling end of the fast lane, for threads that wait: a connection for each call under way."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping

import grpc

from jellybean_agent.errors import StatusError, describe_error, status_from_number
from jellybean_agent.rpc.unix_socket import CALL, FAILED, FRAME, GREETING, HEAD, REPLY, SOCKET_BYTES, STATUS, peer_uid
from jellybean_agent.system.sockets import receive_exactly
from jellybean_agent.tensors.tensors import MAX_MESSAGE_BYTES

_CONNECT_S = 5.0
_GRACE_S = 0.2  # after a call's deadline, for the server to say why
_SOON_S = 1e-6  # what is left of a deadline that has passed: 0 would say that there is none
_MOST_IDLE = 16  # connections that are kept


class UnixSocketRpcUnsupportedError(Exception):
    """Who listens there does not speak the lane."""


class _UnsentError(OSError):
    """Not all of a request could be sent: nobody has executed it."""


class UnixSocketClient:
    """Calls to one Unix socket; safe for several threads. NoLaneError when there is no lane, OSError for no server."""

    def __init__(self, path: str, metadata: Mapping[str, str]) -> None:
        self._path = path
        self._metadata = json.dumps(dict(metadata)).encode()
        self._idle: list[socket.socket] = []
        self._numbers = 0
        self._idle.append(self._connect())

    def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """One unary call: its response. StatusError when it fails, UNAVAILABLE when the server is gone."""
        until_s = time.monotonic() + timeout_s
        kept = self._kept()
        connection = kept or self._connected()
        try:
            try:
                found = self._call(connection, method, message, until_s)
            except _UnsentError:
                connection.close()
                if kept is None:
                    raise
                self.close()  # those that are kept too: they are of a server that is gone
                connection = self._connected()
                found = self._call(connection, method, message, until_s)
        except StatusError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{self._path}: {describe_error(error)}") from error
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if isinstance(found, StatusError):
            raise found
        return found

    def close(self) -> None:
        while (kept := self._kept()) is not None:
            kept.close()

    def _kept(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connected(self) -> socket.socket:
        try:
            return self._connect()
        except (UnixSocketRpcUnsupportedError, OSError) as error:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{self._path}: {error}") from error

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            connection.connect(self._path)
            if peer_uid(connection) != os.geteuid():
                raise UnixSocketRpcUnsupportedError(f"{self._path} is served by another user")
            connection.sendall(GREETING)
            if receive_exactly(connection, len(GREETING)) != GREETING:
                raise UnixSocketRpcUnsupportedError(f"{self._path} has no fast lane")
        except ConnectionError as error:
            connection.close()
            raise UnixSocketRpcUnsupportedError(f"{self._path} has no fast lane: {describe_error(error)}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _call(self, connection: socket.socket, method: str, message: bytes, until_s: float) -> bytes | StatusError:
        path = method.encode()
        self._numbers = number = (self._numbers + 1) & 0x7FFFFFFF
        left_s = max(_SOON_S, until_s - time.monotonic())
        head = HEAD.pack(left_s, len(path), len(self._metadata)) + path + self._metadata
        connection.settimeout(left_s + _GRACE_S)
        frame = FRAME.pack(FRAME.size - 4 + len(head) + len(message), number, CALL) + head
        try:
            try:
                _send(connection, frame, message)
            except ConnectionError as error:
                raise _UnsentError(*error.args) from error
            size, answered, kind = FRAME.unpack(receive_exactly(connection, FRAME.size))
            if answered != number or size > MAX_MESSAGE_BYTES + FRAME.size or kind not in (REPLY, FAILED):
                raise ConnectionError(f"a frame {kind} of {size} bytes of call {answered} came")
            found = receive_exactly(connection, size - (FRAME.size - 4))
        except TimeoutError as error:
            reason = f"no answer within {left_s:.3g} s"
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from error
        if kind == REPLY:
            return bytes(found)
        (status,) = STATUS.unpack_from(found)
        return StatusError(status_from_number(status), bytes(found[STATUS.size :]).decode("utf-8", "replace"))


def _send(connection: socket.socket, head: bytes, message: bytes) -> None:
    sent = connection.sendmsg([head, message])
    if sent < len(head):
        connection.sendall(head[sent:] + message)
    elif sent < len(head) + len(message):
        connection.sendall(memoryview(message)[sent - len(head) :])
