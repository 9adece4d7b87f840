"""The blocking client of the Unix-socket protocol, against servers that answer right, wrong, late or not."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from jellybean_agent import CALL, FRAME, GREETING, HEAD, StatusError, UnixSocketClient, UnixSocketRpcUnsupportedError
from jellybean_agent.rpc.unix_socket_frames import AFTER_LENGTH, FAILED, REPLY, STATUS
from jellybean_agent.system.sockets import receive_exactly
from tests.support.waiting import wait_until

Request = tuple[int, float, str, bytes, bytes]  # number, seconds left, method, metadata, message
Answer = Callable[[socket.socket, Request], bool]  # answers a request; False: close the connection


def framed(number: int, kind: int, data: bytes) -> bytes:
    return FRAME.pack(AFTER_LENGTH + len(data), number, kind) + data


class Server:
    """Serves connections, one after another, by a script. `greets`: what it answers to a greeting."""

    def __init__(self, path: Path, answer: Answer, greets: bytes = GREETING) -> None:
        self.path, self._answer, self._greets = str(path), answer, greets
        self.requests: list[Request] = []
        self.connections = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(ConnectionError):
                receive_exactly(connection, len(GREETING))
                connection.sendall(self._greets)
                while self._serve_call(connection):
                    pass

    def _serve_call(self, connection: socket.socket) -> bool:
        size, number, kind = FRAME.unpack(receive_exactly(connection, FRAME.size))
        assert kind == CALL
        data = bytes(receive_exactly(connection, size - AFTER_LENGTH))
        left_s, path, metadata = HEAD.unpack_from(data)
        texts = data[HEAD.size :]
        request = number, left_s, texts[:path].decode(), texts[path : path + metadata], texts[path + metadata :]
        self.requests.append(request)
        return self._answer(connection, request)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        Path(self.path).unlink()


@contextlib.contextmanager
def serving(path: Path, answer: Answer, greets: bytes = GREETING) -> Iterator[Server]:
    server = Server(path, answer, greets)
    try:
        yield server
    finally:
        server.close()


def echo(connection: socket.socket, request: Request) -> bool:
    connection.sendall(framed(request[0], REPLY, request[4]))
    return True


def connected(server: Server, metadata: dict[str, str] | None = None) -> UnixSocketClient:
    client = UnixSocketClient(server.path, metadata or {})
    client.connect()
    return client


def test_calls_go_over_one_connection(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(2**22)
    with serving(tmp_path / "s", echo) as server:
        client = connected(server, {"a": "b"})
        assert [client.call("/x/Y", message, 30.0) for message in (b"one", b"", large)] == [b"one", b"", large]
        assert server.connections == 1
        assert [request[0] for request in server.requests] == [1, 2, 3]
        assert {request[2:4] for request in server.requests} == {("/x/Y", b'{"a": "b"}')}
        assert all(29.0 < request[1] <= 30.0 for request in server.requests)
        client.close()


def test_a_failed_call_has_its_status_and_the_connection_stays(tmp_path: Path) -> None:
    def fail(connection: socket.socket, request: Request) -> bool:
        number = grpc.StatusCode.NOT_FOUND.value[0]
        connection.sendall(framed(request[0], FAILED, STATUS.pack(number) + b"gibt's nicht"))
        return True

    with serving(tmp_path / "s", fail) as server:
        client = connected(server)
        for _ in range(2):
            with pytest.raises(StatusError, match="gibt's nicht") as failed:
                client.call("/x/Y", b"", 30.0)
            assert failed.value.status is grpc.StatusCode.NOT_FOUND
        assert server.connections == 1
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: framed(request[0] + 1, REPLY, b""),
        lambda request: framed(request[0], CALL, b""),
        lambda request: FRAME.pack(2**31, request[0], REPLY),
        lambda request: framed(request[0], REPLY, b"cut")[:-1],
        lambda request: b"",
    ],
)
def test_a_wrong_answer_ends_the_connection(tmp_path: Path, answer: Callable[[Request], bytes]) -> None:
    def answer_wrong(connection: socket.socket, request: Request) -> bool:
        connection.sendall(answer(request))
        return False

    with serving(tmp_path / "s", answer_wrong) as server:
        client = connected(server)
        with pytest.raises(StatusError, match=f"^{server.path}: ") as failed:
            client.call("/x/Y", b"", 30.0)
        assert failed.value.status is grpc.StatusCode.UNAVAILABLE
        assert len(server.requests) == 1, "it may have been executed: it is not sent again"
        client.close()


def test_an_answer_that_does_not_come_in_time(tmp_path: Path) -> None:
    done = threading.Event()

    def wait(_connection: socket.socket, _request: Request) -> bool:
        done.wait(10)
        return False

    with serving(tmp_path / "s", wait) as server:
        client = connected(server)
        with pytest.raises(StatusError, match=r"no answer within 0\.0\d* s") as failed:
            client.call("/x/Y", b"", 0.01)
        assert failed.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
        done.set()
        with pytest.raises(StatusError):
            client.call("/x/Y", b"", -1.0)
        wait_until(lambda: len(server.requests) == 2)
        assert server.requests[-1][1] == 1e-6, "0 would mean no deadline"
        client.close()


def test_a_dead_pooled_connection_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path, echo) as server:
        client = connected(server)
        assert client.call("/x/Y", b"1", 30.0) == b"1"
        client._idle[0].shutdown(socket.SHUT_RDWR)
        dead, other = socket.socketpair()
        other.close()
        client._idle.insert(0, dead)
    with serving(path, echo) as server:
        assert client.call("/x/Y", b"2", 30.0) == b"2"
        assert client.call("/x/Y", b"3", 30.0) == b"3"
        assert server.connections == 1
        assert len(client._idle) == 1, "all connections to the dead server are closed"
        client.close()
    with pytest.raises(StatusError, match=str(path)) as failed:
        client.call("/x/Y", b"4", 30.0)
    assert failed.value.status is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("greets", [b"HTTP/1.1 400 Bad R", GREETING[:5]])
def test_a_server_without_the_protocol(tmp_path: Path, greets: bytes) -> None:
    def close(_connection: socket.socket, _request: Request) -> bool:
        return False

    path = tmp_path / "s"
    if greets == GREETING[:5]:

        class Short(Server):
            def _serve_call(self, connection: socket.socket) -> bool:
                return False

        server = Short(path, close, greets)
    else:
        server = Server(path, close, greets)
    client = UnixSocketClient(server.path, {})
    with pytest.raises(UnixSocketRpcUnsupportedError, match="has no Unix-socket RPC"):
        client.connect()
    with pytest.raises(StatusError) as failed:
        client.call("/x/Y", b"", 1.0)
    assert failed.value.status is grpc.StatusCode.UNAVAILABLE
    server.close()


def test_a_server_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "s", echo) as server:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(UnixSocketRpcUnsupportedError, match="is served by another user"):
            UnixSocketClient(server.path, {}).connect()


def test_only_so_many_connections_are_pooled(tmp_path: Path) -> None:
    with serving(tmp_path / "s", echo) as server:
        client = connected(server)
        pairs = [socket.socketpair() for _ in range(15)]
        for one, _ in pairs:
            client._idle.insert(0, one)
        assert client.call("/x/Y", b"x", 30.0) == b"x"
        assert len(client._idle) == 16
        client.close()
        assert client._idle == []
        for one, other in pairs:
            assert one.fileno() == -1, "closed with the pool"
            other.close()
