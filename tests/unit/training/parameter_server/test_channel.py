"""Connections of parameter servers: who has not the key is refused, bytes arrive as they were, an end is noticed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.parameter_server.channel import Channel, ConnectionLostError, accept, connect
from jellybean.training.parameter_server.flat_tensors import FlatTensors

KEY = b"k" * 32


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@contextmanager
def _ends(listener: socket.socket, key: bytes = KEY) -> Iterator[tuple[Channel, Channel]]:
    """The server's end and the worker's, which has `key`."""
    with ThreadPoolExecutor() as pool:
        server = pool.submit(lambda: accept(listener.accept()[0], KEY))
        worker = pool.submit(connect, listener.getsockname(), key, 10.0)
        with closing(server.result()) as one, closing(worker.result()) as other:
            yield one, other


def test_tensors_arrive_as_they_were(listener):
    values = {
        "half": torch.arange(3).bfloat16(),
        "nothing": torch.zeros(0),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "matrix": torch.randn(300, 400),
    }
    sent, received = FlatTensors(values), FlatTensors(values)
    sent.put(values)
    with _ends(listener) as (server, worker):
        with ThreadPoolExecutor() as pool:
            pool.submit(worker.send, {"kind": "push", "loss": 0.1 + 0.2}, sent.memory)
            header = server.receive()
            server.receive_into(received.memory, header)
        with pytest.raises(ConnectionLostError, match="in place of"):
            server.receive_into(memoryview(bytearray(3)), header)
        worker.close()
        with pytest.raises(ConnectionLostError):
            server.receive()
    assert header["loss"] == 0.1 + 0.2
    assert received.layout == sent.layout
    assert all(torch.equal(received.views[name], value) for name, value in values.items())
    assert sent.memory.nbytes == sum(value.nbytes for value in values.values())


def test_gradients_that_are_missing_are_zero():
    flat = FlatTensors({"a": torch.zeros(2), "b": torch.zeros(2)})
    flat.put({"a": torch.ones(2), "b": torch.ones(2)})
    flat.put({"a": torch.full((2,), 3.0)})
    assert flat.views["a"].tolist() == [3.0, 3.0]
    assert flat.views["b"].tolist() == [0.0, 0.0]


def test_a_process_without_the_key_is_refused(listener):
    with pytest.raises(ConnectionLostError, match="key"), _ends(listener, b"x" * 32):
        pass


def test_a_worker_does_not_take_a_server_without_the_key(listener):
    """It must not send its rows' digests, nor train on weights of a stranger."""
    with ThreadPoolExecutor() as pool:
        server = pool.submit(lambda: listener.accept()[0])
        worker = pool.submit(connect, listener.getsockname(), KEY, 10.0)
        stranger = server.result()
        stranger.sendall(b"n" * 32)
        assert len(stranger.recv(32)) == 32
        stranger.sendall(b"p" * 32)
        with pytest.raises(ConnectionLostError, match="key"):
            worker.result()
        stranger.close()


def test_an_end_that_says_nothing_is_not_waited_for(listener, monkeypatch):
    monkeypatch.setattr("jellybean.training.parameter_server.channel._HANDSHAKE_S", 0.1)
    with socket.create_connection(listener.getsockname()), pytest.raises(ConnectionLostError, match="timed out"):
        accept(listener.accept()[0], KEY)


def test_bytes_that_come_slowly_do_not_prolong_a_handshake(listener, monkeypatch):
    monkeypatch.setattr("jellybean.training.parameter_server.channel._HANDSHAKE_S", 0.3)
    with socket.create_connection(listener.getsockname()) as stranger, ThreadPoolExecutor() as pool:
        server = pool.submit(lambda: accept(listener.accept()[0], KEY))
        with suppress(OSError):  # the server has closed it
            for _ in range(64):  # a nonce and a proof
                stranger.sendall(b"n")
                time.sleep(0.02)
        with pytest.raises(ConnectionLostError, match="timed out"):
            server.result()
