"""A blocking client of our own protocol on Unix sockets: one connection per call in progress, pooled."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping

import grpc

from jellybean_agent.errors import StatusError, describe_error, status_from_number
from jellybean_agent.rpc.unix_socket_frames import (
    AFTER_LENGTH,
    CALL,
    FAILED,
    FRAME,
    GREETING,
    HEAD,
    REPLY,
    SOCKET_BYTES,
    STATUS,
    peer_uid,
)
from jellybean_agent.system.sockets import receive_exactly
from jellybean_agent.tensors.tensors import MAX_MESSAGE_BYTES

_CONNECT_S = 5.0
_GRACE_S = 0.2  # after a call's deadline, for the server's own status to arrive
_MIN_LEFT_S = 1e-6  # sent when the deadline has passed: 0 would mean no deadline
_MAX_IDLE = 16  # pooled connections


class UnixSocketRpcUnsupportedError(Exception):
    """The server at a Unix socket speaks gRPC only, not the Unix-socket protocol."""


class _UnsentError(OSError):
    """A request could not be sent completely, so it was not executed."""


class UnixSocketClient:
    """Calls to the server at one Unix socket; `connect` first. Safe for several threads."""

    def __init__(self, path: str, metadata: Mapping[str, str]) -> None:
        self._path = path
        self._metadata = json.dumps(dict(metadata)).encode()
        self._idle: list[socket.socket] = []
        self._last_number = 0

    def connect(self) -> None:
        """Open a first connection. UnixSocketRpcUnsupportedError or OSError when that is impossible."""
        self._idle.append(self._open_connection())

    def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """One unary call; returns its response. StatusError if it fails, UNAVAILABLE if the server is gone."""
        until_s = time.monotonic() + timeout_s
        pooled = self._take_idle()
        connection = pooled or self._connection()
        try:
            try:
                answer = self._call(connection, method, message, until_s)
            except _UnsentError:
                connection.close()
                if pooled is None:
                    raise
                self.close()  # the other pooled connections are to the same dead server
                connection = self._connection()
                answer = self._call(connection, method, message, until_s)
        except StatusError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{self._path}: {describe_error(error)}") from error
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if isinstance(answer, StatusError):
            raise answer
        return answer

    def close(self) -> None:
        """Close the pooled connections."""
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connection(self) -> socket.socket:
        try:
            return self._open_connection()
        except (UnixSocketRpcUnsupportedError, OSError) as error:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"{self._path}: {error}") from error

    def _open_connection(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            connection.connect(self._path)
            if peer_uid(connection) != os.geteuid():
                raise UnixSocketRpcUnsupportedError(f"{self._path} is served by another user")
            connection.sendall(GREETING)
            if receive_exactly(connection, len(GREETING)) != GREETING:
                raise UnixSocketRpcUnsupportedError(f"{self._path} has no Unix-socket RPC")
        except ConnectionError as error:
            connection.close()
            reason = f"{self._path} has no Unix-socket RPC: {describe_error(error)}"
            raise UnixSocketRpcUnsupportedError(reason) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _call(self, connection: socket.socket, method: str, message: bytes, until_s: float) -> bytes | StatusError:
        path = method.encode()
        self._last_number = number = (self._last_number + 1) & 0x7FFFFFFF
        left_s = max(_MIN_LEFT_S, until_s - time.monotonic())
        head = HEAD.pack(left_s, len(path), len(self._metadata)) + path + self._metadata
        connection.settimeout(left_s + _GRACE_S)
        frame = FRAME.pack(AFTER_LENGTH + len(head) + len(message), number, CALL) + head
        try:
            try:
                _send(connection, frame, message)
            except ConnectionError as error:
                raise _UnsentError(*error.args) from error
            size, answered, kind = FRAME.unpack(receive_exactly(connection, FRAME.size))
            if answered != number or size > MAX_MESSAGE_BYTES + FRAME.size or kind not in (REPLY, FAILED):
                raise ConnectionError(f"unexpected frame of kind {kind}, {size} bytes, call {answered}")
            payload = receive_exactly(connection, size - AFTER_LENGTH)
        except TimeoutError as error:
            reason = f"no answer within {left_s:.3g} s"
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from error
        if kind == REPLY:
            return bytes(payload)
        (status,) = STATUS.unpack_from(payload)
        return StatusError(status_from_number(status), bytes(payload[STATUS.size :]).decode("utf-8", "replace"))


def _send(connection: socket.socket, head: bytes, message: bytes) -> None:
    """Send head and message without concatenating them in memory."""
    sent = connection.sendmsg([head, message])
    if sent < len(head):
        connection.sendall(head[sent:] + message)
    elif sent < len(head) + len(message):
        connection.sendall(memoryview(message)[sent - len(head) :])
