"""Bytes at ports: HTTP/2, the Unix socket protocol and HTTP. Each port answers a right call after whatever came."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jellybean.ledger import By, Ledger, cost
from jellybean_agent import RpcServer, plan_view
from jellybean_agent.rpc import unix_socket_frames as unix_frames
from jellybean_agent.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW,
    frame,
)
from jellybean_agent.rpc.hpack import encode_headers
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2
from tests.rpc_server import BIDI, ECHO, SLOW, call_of, headers_of, reset_of, served
from tests.support.examples import examples
from tests.support.fuzzing import changed_bytes, changed_json, kept, seeds
from tests.support.ports import free_port
from tests.support.scripted_workers import ScriptedWorker, addresses_of, tensor
from tests.support.served_in_thread import Show, served_in_thread
from tests.support.skips import NotInstalled
from tests.support.tiny_models import make_plan, scale
from tests.support.waiting import wait_until

_CALL_S = 30.0
_MOST_GROWTH_BYTES = 128 * 2**20
_GLANCE_S = 0.005  # a client's patience after what it has sent: longer in no way changes what the server does
few = settings(max_examples=examples(150, nightly=5_000), suppress_health_check=[HealthCheck.too_slow])


def sent_to(address: str | tuple[str, int], data: bytes, cut: int) -> None:
    """Send bytes in two pieces on a connection of their own, which ends a moment later."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CALL_S)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            connection.connect(address)
            connection.sendall(data[:cut])
            connection.sendall(data[cut:])
            connection.settimeout(_GLANCE_S)
            with contextlib.suppress(TimeoutError):
                connection.recv(2**16)


# -- HTTP/2 and the Unix socket protocol ------------------------------------------------------------------------------


def _http2() -> list[bytes]:
    start = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**16))
    packed = encode_headers((*headers_of(ECHO), (b"grpc-encoding", b"gzip"), (b"grpc-timeout", b"1S")))
    return [
        start + call_of(1, b"hello") + call_of(3, b"x" * 500),
        start + frame(HEADERS, END_HEADERS, 1, encode_headers(headers_of(SLOW))) + reset_of(1) + call_of(3, b"y"),
        start + frame(HEADERS, END_HEADERS, 1, packed) + frame(DATA, END_STREAM, 1, b"\1\0\0\0\x05hello"),
        start
        + frame(HEADERS, END_HEADERS, 1, encode_headers(headers_of(BIDI)))
        + frame(DATA, 0, 1, b"\0\0\0\0\x05hello") * 2
        + frame(WINDOW, 0, 1, (2**20).to_bytes(4, "big"))
        + frame(DATA, END_STREAM, 1, b""),
        start + frame(6, 0, 0, b"12345678") + frame(7, 0, 0, bytes(8)) + call_of(1, b"z"),
    ]


def _unix() -> list[bytes]:
    def call(number: int, kind: int, path: str, message: bytes) -> bytes:
        head = unix_frames.HEAD.pack(1.0, len(path), 2) + path.encode() + b"{}" + message
        return unix_frames.FRAME.pack(len(head) + unix_frames.AFTER_LENGTH, number, kind) + head

    def part(number: int, kind: int, data: bytes = b"") -> bytes:
        return unix_frames.FRAME.pack(len(data) + unix_frames.AFTER_LENGTH, number, kind) + data

    return [
        unix_frames.GREETING + b"".join(call(number, unix_frames.CALL, ECHO, b"hello") for number in range(3)),
        unix_frames.GREETING + call(1, unix_frames.CALL, SLOW, b"") + part(1, unix_frames.CANCEL),
        unix_frames.STREAMS_GREETING
        + call(1, unix_frames.OPEN, BIDI, b"")
        + part(1, unix_frames.MESSAGE, b"hello")
        + part(1, unix_frames.END),
    ]


FRAMES = [
    *(frame(kind, 0, 1, b"") for kind in range(11)),
    *(frame(kind, 0xFF, 0, bytes(4)) for kind in (0, 1, 3, 4, 6, 8, 9)),
    *(
        b"\xff\xff\xff\xff",
        b"\x00" * 9,
        b"\x7f\xff\xff\xff",
        b"\x00\x40\x00\x00",
        b"POST",
        b"\x82\x86\x84",
    ),
]


ODD_HEADERS = [
    *((b":path", b""), (b":method", b"GET"), (b"content-type", b"text/plain"), (b"grpc-timeout", b"1 S")),
    *((b"Upper", b"x"), (b"x", b"\r\n\0"), (b"connection", b"close"), (b"content-length", b"9"), (b"", b"")),
]
ODD_PAYLOADS = [
    *(b"", bytes(4), b"\xff" * 4, bytes(5), bytes(6), bytes(8), b"x" * 9000),
    *(b"\0\4\xff\xff\xff\xff", b"\x3f\xe1\x7f", b"\0\0\0\0\x05hello", b"\1\0\0\0\1x"),
    *(encode_headers(headers_of(path)) for path in (ECHO, SLOW, BIDI)),
    *(encode_headers((header,)) for header in ODD_HEADERS),
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A right beginning, then frames of any type, flags and stream, with payloads that some of them may have."""
    data = PREFACE + frame(SETTINGS, 0, 0, b"")
    for _ in range(draw(st.integers(1, 8))):
        stream = draw(st.sampled_from([0, 1, 1, 1, 3, 5, 2, 2**31 - 1]))
        flags = draw(st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM, 8, 0x20, 0xFF]))
        data += frame(draw(st.integers(0, 10)), flags, stream, draw(st.sampled_from(ODD_PAYLOADS)))
    return data


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RpcServer, str]]:
    """A server of ours, and the path of its Unix socket. Nothing may go wrong in its event loop."""
    folder = tmp_path_factory.mktemp("s")

    def serve(show: Show[tuple[RpcServer, str]]) -> None:
        served(folder, lambda server, link: show((server, link.path)), within_s=3600)

    with served_in_thread(serve) as found:
        yield found
        wait_until(lambda: not found[0].calls_in_progress and not found[0].open_connections)


@few
@given(data=changed_bytes([*_http2(), *_unix(), *seeds("http2")], FRAMES) | frames(), cut=st.integers(0, 2000))
@kept("http2", cut=0)
def test_http2_and_the_unix_socket_protocol(echoing: tuple[RpcServer, str], data: bytes, cut: int) -> None:
    _, path = echoing
    sent_to(path, data, cut)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CALL_S)
        connection.connect(path)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + call_of(1, b"still here"))
        found = b""
        while b"grpc-status" not in found:
            part = connection.recv(2**16)
            assert part, found
            found += part
        assert b"still here" in found


# -- a gateway's ports ------------------------------------------------------------------------------------------------


class Served:
    """A gateway's process, and two workers of one operator in this one. No dataclass: reports would show all of it."""

    def __init__(self, workers: dict[str, ScriptedWorker], http_port: int, channel: grpc.Channel) -> None:
        self.workers, self.http_port, self.channel = workers, http_port, channel

    def call(self, method: str, request: bytes) -> tuple[grpc.StatusCode, str, bytes]:
        """Status, reason and answer of a call with these bytes."""
        try:
            return (
                grpc.StatusCode.OK,
                "",
                self.channel.unary_unary(method)(request, timeout=_CALL_S),
            )
        except grpc.RpcError as error:
            return error.code(), error.details() or "", b""

    def state(self) -> str:
        """What the gateway says of itself; empty if it says nothing."""
        return gateway_pb2.StatusResponse.FromString(self.call("/jellybean.gateway.v1.Gateway/Status", b"")[2]).state

    def assert_answers(self) -> None:
        """A right request over HTTP is answered."""
        head = f"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(BODY)}\r\n"
        with socket.create_connection(("127.0.0.1", self.http_port), _CALL_S) as connection:
            connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + BODY)
            found = b"".join(iter(lambda: connection.recv(2**16), b""))
        assert found.startswith(b"HTTP/1.1 200 "), found
        assert json.loads(found.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [1, 2, 3, 4]


REQUEST: dict[str, Any] = {
    "id": "",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], "parameters": {}}],
    "outputs": [{"name": "double", "parameters": {"binary_data": False}}],
    "parameters": {"timeout": 5_000_000, "priority": 1},
}
BODY = json.dumps(REQUEST).encode()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It lives until the tests end, has not grown by much, and its log tells of no failure of its own."""
    pytest.importorskip("aiohttp", reason=NotInstalled.AIOHTTP)
    root, port = tmp_path_factory.mktemp("g"), free_port()
    operators = {"double": (["x"], scale(root / "models/double.onnx", 2.0))}
    routes = [(0.5, {"double": "edge-1"}), (0.5, {"double": "edge-2"})]
    plan = make_plan(root, operators, routes, sources={"x": "edge"})
    with (
        tempfile.TemporaryDirectory(prefix="jb-") as folder,
        (root / "log").open("w+", encoding="utf-8") as log,
    ):
        view = plan_view(plan)
        addresses = addresses_of(view, Path(folder))
        for name, document in (("plan", plan), ("peers", addresses)):
            (root / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
        files = [f"--plan={root}/plan.json", f"--peers={root}/peers.json", f"--links={root}/links"]
        options = [f"--address-file={root}/address", "--insecure", f"--http-port={port}"]
        options += [f"--ledger={root}/ledger.db", f"--live={root}/live", "--ledger-run=one"]
        command = [sys.executable, "-m", "jellybean.serving.gateway_main", *files, *options]
        workers = {
            worker.name: ScriptedWorker(worker.name, view, addresses[worker.name], addresses[""])
            for worker in view.serving
        }

        def serve(show: Show[None]) -> None:
            asyncio.run(_working(workers, show))

        with (
            served_in_thread(serve),
            subprocess.Popen(command, stderr=log) as process,
            grpc.insecure_channel(addresses[""]) as channel,
        ):
            served_here = Served(workers, port, channel)
            try:
                wait_until(lambda: served_here.state() == "ready")
                served_here.assert_answers()
                before = psutil.Process(process.pid).memory_info().rss
                yield served_here
                assert psutil.Process(process.pid).memory_info().rss < before + _MOST_GROWTH_BYTES
            finally:
                process.terminate()
            assert process.wait(_CALL_S) == 0
        log.seek(0)
        assert "Traceback" not in log.read()
    with contextlib.closing(Ledger(str(root / "ledger.db"))) as ledger:
        lines = {line.name: line for line in cost(ledger, By.WORKER)}
    assert lines.keys() == set(workers)  # whatever one of them counted
    assert all(0.0 < line.usd < 1.0 for line in lines.values()), lines


async def _working(workers: dict[str, ScriptedWorker], show: Show[None]) -> None:
    for worker in workers.values():
        await worker.start()
    await show(None)
    for worker in workers.values():
        await worker.stop()


def _http() -> list[bytes]:
    def request(line: str, body: bytes, *headers: str) -> bytes:
        head = [f"{line} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}"]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    infer = "POST /v2/models/tiny/infer"
    document = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 4],
                "parameters": {"binary_data_size": 16},
            }
        ]
    }
    head = json.dumps(document).encode()
    behind = struct.pack("<4f", 1, 2, 3, 4)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:50], BODY[50:])) + b"0\r\n\r\n"
    return [
        request(infer, BODY),
        request(infer, head + behind, f"Inference-Header-Content-Length: {len(head)}"),
        f"{infer} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks,
        request(infer, gzip.compress(BODY), "Content-Encoding: gzip"),
        request("GET /v2/models/tiny/versions/1/config", b"") + request("GET /v2", b""),
        request("POST /v2/models/tiny/labels", b'{"labels": [{"id": "a", "label": 1}]}'),
        request("POST /v2/repository/index", b'{"ready": true}'),
    ]


HTTP_PIECES = [
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\0",
        b" ",
        b"%00",
        b"%2e%2e/",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"\xff\xfe",
        b"ffffffffffff",
    ),
    *(
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ),
    *(
        b"Content-Encoding: deflate\r\n",
        b"Content-Encoding: zstd\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
    ),
    *(
        b"Host: evil\r\n",
        b"A: " + b"b" * 9000 + b"\r\n",
        b"Inference-Header-Content-Length: 7\r\n",
        PREFACE,
    ),
]


@few
@given(data=changed_bytes([*_http(), *seeds("http")], HTTP_PIECES), cut=st.integers(0, 400))
@kept("http", cut=0)
def test_http(gateway: Served, data: bytes, cut: int) -> None:
    sent_to(("127.0.0.1", gateway.http_port), data, cut)
    gateway.assert_answers()


@few
@given(document=changed_json(REQUEST))
def test_requests_as_json(gateway: Served, document: Any) -> None:
    """Whatever the values are, the answer is JSON with a reason; none is a failure of the server."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=_CALL_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/tiny/infer", json.dumps(document))
        response = connection.getresponse()
        body = response.read()
        json_bytes = response.headers.get("Inference-Header-Content-Length", len(body))
        answer = json.loads(body[: int(json_bytes)])
        assert response.status in {200, 400, 404, 429, 501, 504}, answer
        assert response.status == 200 or len(answer["error"]) <= 2000
    gateway.assert_answers()


# What a refusal may be: UNKNOWN and INTERNAL would be failures of the gateway itself.
REFUSALS = {
    *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND),
    *(
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    ),
    *(grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED),
}
UNREADABLE = grpc.StatusCode.INTERNAL  # as grpc's own servers say of bytes that are no message


def _calls() -> list[tuple[str, bytes]]:
    infer = gateway_pb2.InferRequest(inputs={"x": tensor(1, 2, 3, 4)})
    stream = gateway_pb2.Stream(id="s", begins=True, chunk=1)
    return [
        ("Infer", infer.SerializeToString()),
        (
            "Infer",
            gateway_pb2.InferRequest(inputs={"x": tensor(1)}, request_id="a", stream=stream).SerializeToString(),
        ),
        ("Status", gateway_pb2.StatusRequest(workflow="tiny").SerializeToString()),
        ("Metrics", agent_pb2.MetricsRequest(workflow="tiny").SerializeToString()),
    ]


@few
@given(data=st.data())
def test_calls_of_the_gateway_s_service(gateway: Served, data: st.DataObject) -> None:
    method, right = data.draw(st.sampled_from(_calls()))
    request = data.draw(
        changed_bytes([right, *seeds("gateway")], [b"\xff" * 9 + b"\x01", b"\x80", b"\x0a\x00", b"float64"])
    )
    code, reason, _ = gateway.call(f"/jellybean.gateway.v1.Gateway/{method}", request)
    assert code in REFUSALS or code is UNREADABLE, (code, reason)
    assert "Traceback" not in reason
    assert len(reason) < 2500
    gateway.assert_answers()


METRICS = b"""\
# HELP jellybean_requests_total Requests completed.
# TYPE jellybean_requests_total counter
jellybean_requests_total{operator="double",variant="only",worker="edge-1"} 4.0
jellybean_busy_seconds_total{operator="double",variant="only",worker="edge-1"} 0.25
# TYPE jellybean_queue gauge
jellybean_queue{operator="double",variant="only",worker="edge-1"} 3.0
# TYPE jellybean_counted_since_timestamp_seconds gauge
jellybean_counted_since_timestamp_seconds{worker="edge-1"} 1.7e+09
"""
METRICS_PIECES = [
    *(
        b"NaN",
        b"+Inf",
        b"-1",
        b"1e999",
        b'"',
        b"}",
        b"{",
        b"\n",
        b"\\",
        b"\xff",
        b"# TYPE jellybean_requests_total gauge\n",
    ),
    *(
        b'worker="edge-2"',
        b'operator="moon"',
        b" 7\n",
        b"jellybean_gateway_requests_total 9\n",
        b"# EOF\n",
        b"\0",
        b",",
    ),
]


@few
@given(data=changed_bytes([METRICS, *seeds("metrics")], METRICS_PIECES))
@kept("metrics")
def test_metrics_of_a_worker(gateway: Served, data: bytes) -> None:
    """What one worker says takes nothing from the others: their figures and the gateway's are there."""
    own, other = (gateway.workers[name] for name in ("edge-1", "edge-2"))
    own.metrics, other.metrics = (
        data,
        METRICS.replace(b"edge-1", b"edge-2").replace(b"} 3.0", b"} 4321.0"),
    )
    code, reason, answer = gateway.call("/jellybean.gateway.v1.Gateway/Metrics", b"")
    assert code is grpc.StatusCode.OK, reason
    text = agent_pb2.MetricsResponse.FromString(answer).text.decode()
    assert 'worker="edge-2"} 4321.0' in text
    assert "jellybean_gateway_received_total" in text
