"""A client that sends refused requests again, for as long as it was told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean.serving import Chunk, Client, RequestError, ServingError
from jellybean_agent import encode_tensor, says_cut_off
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc

ROW = np.array([[1.0, 2.0]], np.float32)


class Gateway(gateway_pb2_grpc.GatewayServicer):
    """Refuses the first requests with a status, then answers with what it was sent."""

    def __init__(self, refusals: int, status: grpc.StatusCode) -> None:
        self._refusals, self._status = refusals, status
        self.ids: list[str] = []

    def Infer(self, request: Any, context: Any) -> Any:
        self.ids.append(request.request_id)
        if len(self.ids) <= self._refusals:
            context.abort(self._status, "not now")
        return gateway_pb2.InferResponse(request_id="x", outputs={"y": encode_tensor(ROW)})


@contextmanager
def running(gateway: Gateway) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_a_refused_request_is_sent_again_under_its_id_until_it_is_answered() -> None:
    gateway = Gateway(3, grpc.StatusCode.UNAVAILABLE)
    with running(gateway) as address, Client(address, retry_s=30.0) as client:
        (answer,) = client.infer({"x": ROW}, request_id="one").values()
    assert np.array_equal(answer, ROW)
    assert gateway.ids == ["one"] * 4


@pytest.mark.parametrize(
    ("retry_s", "status", "call"),
    [
        (0.0, grpc.StatusCode.UNAVAILABLE, lambda client: client.infer({"x": ROW})),
        (30.0, grpc.StatusCode.INVALID_ARGUMENT, lambda client: client.infer({"x": ROW})),
        (30.0, grpc.StatusCode.DEADLINE_EXCEEDED, lambda client: client.infer({"x": ROW})),
        (30.0, grpc.StatusCode.UNAVAILABLE, lambda client: client.infer({"x": ROW}, chunk=Chunk("one"))),
    ],
)
def test_nothing_else_is_sent_again(retry_s: float, status: grpc.StatusCode, call: Callable[[Client], object]) -> None:
    gateway = Gateway(10, status)
    refused = pytest.raises(RequestError)
    with running(gateway) as address, Client(address, retry_s=retry_s) as client, refused as caught:
        call(client)
    assert caught.value.status == status.name
    assert len(gateway.ids) == 1


def test_a_numbered_chunk_is_sent_again_as_it_is_answered_once() -> None:
    gateway = Gateway(1, grpc.StatusCode.UNAVAILABLE)
    with running(gateway) as address, Client(address, retry_s=30.0) as client:
        client.infer({"x": ROW}, chunk=Chunk("one", number=3))
    assert len(gateway.ids) == 2


def test_it_ends_with_the_last_refusal_at_the_time_limit() -> None:
    gateway = Gateway(10_000, grpc.StatusCode.UNAVAILABLE)
    refused = pytest.raises(RequestError, match="not now")
    with running(gateway) as address, Client(address, retry_s=60.0) as client, refused:
        client.infer({"x": ROW}, timeout_s=1.0)
    assert 3 <= len(gateway.ids) <= 20


def gone(address: str, **options: Any) -> str:
    with Client(address, **options) as client, pytest.raises(RequestError) as error:
        client.infer({"x": ROW}, timeout_s=10.0)
    assert error.value.status == "UNAVAILABLE"
    return error.value.reason


ENDED = "it is not up, or has just ended: look after it, then repeat this"


def test_a_gateway_that_has_just_ended_is_told_with_the_next_step(tmp_path: Path) -> None:
    """Its socket is not there yet; is there, and nothing listens; or ends each connection."""
    assert gone(f"unix:{tmp_path}/none.sock").endswith(ENDED)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/dead.sock")
    assert gone(f"unix:{tmp_path}/dead.sock").endswith(ENDED)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/closing.sock")
        server.listen()
        thread = threading.Thread(target=_answer_and_close, args=(server,), daemon=True)
        thread.start()
        assert gone(f"unix:{tmp_path}/closing.sock").endswith(ENDED)


def _answer_and_close(server: socket.socket) -> None:
    """Greet each client as a gateway does, read its request, and end."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(64))
                connection.recv(1)


@pytest.mark.parametrize(
    ("details", "is_said"),
    [
        ("Socket closed", True),
        ("recvmsg:Connection reset by peer", True),
        ("unix:/run/gateway.sock: Socket closed", True),
        ("worker box-1: Connection reset by peer", False),
        ("the gateway is shutting down", False),
    ],
)
def test_what_grpc_says_of_a_connection_that_ends(details: str, is_said: bool) -> None:
    assert says_cut_off(details) is is_said


@pytest.mark.parametrize("limit_s", [0, -1.0, float("nan")])
def test_a_time_limit_that_leaves_no_time_is_not_taken_for_none(limit_s: float) -> None:
    with pytest.raises(ServingError, match=r"leaves no time for an answer: give more"):
        Client("127.0.0.1:1", timeout_s=limit_s)
    with Client("127.0.0.1:1") as client:
        for call in (
            lambda: client.infer({"x": ROW}, timeout_s=limit_s),
            lambda: client.answer("a", timeout_s=limit_s),
        ):
            with pytest.raises(ServingError, match=r"leaves no time"):
                call()
