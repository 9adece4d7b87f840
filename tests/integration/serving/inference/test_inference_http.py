"""The Open Inference Protocol over HTTP on a gateway: by tritonclient.http, and by hand as curl would."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client, LaunchSettings, Running
from jellybean.serving.errors import LaunchError
from jellybean.serving.local import launcher
from jellybean_protos.extras import install_command
from jellybean_solver import Link
from tests.integration.serving.inference.triton_remote import triton_process
from tests.support.ports import free_port
from tests.support.skips import NotInstalled
from tests.support.tiny_models import chain, fan_out, make_plan, positives, scale
from tests.support.waiting import wait_until

pytest.importorskip("aiohttp", reason="HTTP is an extra: pip install 'jellybean-serving[http]'")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, int]]:
    """Two sources and two sinks, one of them below a fan-out."""
    root = tmp_path_factory.mktemp("http")
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "split": (["y"], positives(root / "models/split.onnx")),
        "tenth": ([fan_out("split", "tenth")], scale(root / "models/tenth.onnx", 0.1, 1)),
    }
    document = make_plan(
        root, operators, [(1.0, dict.fromkeys(operators, "edge-1"))], sources={"x": "edge", "y": "edge"}
    )
    port = free_port()
    running = launcher.up(root, document, LaunchSettings(port=0, http_port=port, insecure=True))
    yield running, port
    running.down()


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return {name: drawn.normal(size=(1, size)).astype(np.float32) for name, size in (("x", 4), ("y", 6))}


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        found = response.read()
        if response.getheader("Content-Type", "").startswith("application/json"):
            return response.status, json.loads(found), response.headers
        return response.status, found, response.headers
    finally:
        connection.close()


def document(sent: dict[str, np.ndarray], **more: Any) -> bytes:
    items = [
        {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()}
        for name, array in sent.items()
    ]
    return json.dumps({"inputs": items} | more).encode()


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_gets_the_same_bits(served: tuple[Running, int], binary: bool) -> None:
    pytest.importorskip("geventhttpclient", reason=NotInstalled.GEVENTHTTPCLIENT)
    running, port = served
    sent, version = inputs(), running.state.plan[:12]
    with triton_process() as remote, Client(running.gateway_address) as client:
        found = remote(
            "over_http", f"127.0.0.1:{port}", "tiny", sent, None if binary else ["tenth", "double"], binary=binary
        )
        ours = client.infer(sent)
    assert found["head"] == {"id": "7", "model_name": "tiny", "model_version": version}
    assert {name: array.tobytes() for name, array in found["tensors"].items()} == {
        name: array.tobytes() for name, array in ours.items()
    }
    assert found["ready"] == (True, True, True)
    assert found["server"]["name"] == "jellybean-gateway"
    assert found["metadata"]["inputs"][1] == {"name": "y", "datatype": "FP32", "shape": [1, -1]}
    assert found["config"]["output"][0] == {"name": "double", "data_type": "TYPE_FP32", "dims": [-1, 4]}
    assert found["index"] == [{"name": "tiny", "version": version, "state": "READY", "reason": ""}]
    assert found["statistics"][0]["inference_count"] >= 1
    assert found["load"][0] == found["missing"][0] == "400"
    assert "the plan decides" in found["load"][1]
    assert found["unknown"] == ("404", "no model 'nobody' here; served: tiny")


def test_by_hand_as_curl_does(served: tuple[Running, int]) -> None:
    running, port = served
    sent = inputs(1)
    with Client(running.gateway_address) as client:
        ours = client.infer(sent)
    status, answer, headers = ask(port, "POST", "/v2/models/tiny/infer", document(sent, outputs=[{"name": "double"}]))
    assert (status, headers["Inference-Header-Content-Length"]) == (200, None)
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"]) == ("double", [1, 4])
    assert np.array(output["data"], np.float32).tobytes() == ours["double"].tobytes()
    path = f"/v2/models/tiny/versions/{answer['model_version']}/infer"
    packed = gzip.compress(document(sent, parameters={"binary_data_output": True}))
    status, answer, headers = ask(port, "POST", path, packed, Content_Encoding="gzip")
    length = int(headers["Inference-Header-Content-Length"])
    assert [item["name"] for item in json.loads(answer[:length])["outputs"]] == ["double", "tenth"]
    assert answer[length:] == ours["double"].tobytes() + ours["tenth"].tobytes()
    assert ask(port, "GET", "/v2/health/live")[:2] == (200, {"live": True})
    assert ask(port, "GET", "/v2/models/tiny/ready")[:2] == (200, {"name": "tiny", "ready": True})
    assert ask(port, "POST", "/v2/repository/index", b'{"ready": true}')[1][0]["state"] == "READY"


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (("GET", "/"), 404, "GET /: Not Found; see /v2"),
        (("DELETE", "/v2/models/tiny"), 405, "Method Not Allowed"),
        (("GET", "/v2/models/%ed%a0%80"), 404, "no model"),
        (("POST", "/v2/models/tiny/versions/9/infer", document(inputs())), 404, "not '9'"),
        (("POST", "/v2/models/tiny/infer", document({"x": inputs()["x"]})), 400, "one tensor per source (x, y), got x"),
        (("POST", "/v2/models/tiny/infer", b'{"inputs": [], "id": "\\ud800"}'), 400, "not valid Unicode"),
        (("POST", "/v2/models/tiny/infer", document(inputs(), parameters={"sequence_id": 1})), 501, "sequence_id"),
        (("POST", "/v2/models/tiny/infer", document(inputs(), parameters={"timeout": 1})), 504, "no answer of double"),
        (("POST", "/v2/models/tiny/infer", bytes(2**26 + 2**17)), 413, "above the limit"),
        (("POST", "/v2/models/tiny/infer", b"[" + b" " * 2**24), 413, "send tensors as bytes behind it"),
        (("POST", "/v2/repository/index", b"[]"), 400, "a JSON object is meant"),
    ],
)
def test_what_is_refused(served: tuple[Running, int], call: tuple, status: int, told: str) -> None:
    found = ask(served[1], *call)
    assert found[0] == status
    assert told in found[1]["error"]


def test_headers_that_lie(served: tuple[Running, int]) -> None:
    _, port = served
    for length in ("-1", "many", "9" * 30, "99999"):
        found = ask(port, "POST", "/v2/models/tiny/infer", b"{}", Inference_Header_Content_Length=length)
        assert found[0] == 400
        assert "Inference-Header-Content-Length" in found[1]["error"]
    bomb = gzip.compress(bytes(2**26 + 2**20))
    assert ask(port, "POST", "/v2/models/tiny/infer", bomb, Content_Encoding="gzip")[0] in (400, 413)
    assert ask(port, "GET", "/v2", Host=f"evil.example:{port}")[:2] == (
        403,
        {"error": "host 'evil.example' is not this machine: ask 127.0.0.1 or localhost or [::1]"},
    )
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(port, "GET", "/v2", Host=f"{host}:{port}")[0] == ask(port, "GET", "/v2", Host=host)[0] == 200
    for host in (
        "[::2]",
        "[::1].evil.example",
        "::1.evil.example",
        "[2001:db8::1]",
        "localhost.evil.example",
        "10.0.0.7",
    ):
        assert ask(port, "GET", "/v2", Host=f"{host}:{port}")[0] == ask(port, "GET", "/v2", Host=host)[0] == 403


def test_whatever_comes_the_gateway_lives(served: tuple[Running, int]) -> None:
    running, port = served
    drawn, seen = random.Random(0), set()
    for _ in range(100):
        body = bytearray(document(inputs(drawn.randrange(9))))
        for _ in range(drawn.randrange(1, 9)):
            body[drawn.randrange(len(body))] = drawn.choice(b'[]{}",:0-.e\\ntr\xff')
        seen.add(ask(port, "POST", "/v2/models/tiny/infer", bytes(body[: drawn.randrange(1, len(body) + 200)]))[0])
    assert seen <= {200, 400}
    with Client(running.gateway_address) as client:
        assert client.status().state == "ready"
    for process in running.state.processes:
        assert "Traceback" not in Path(process.log).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_port_in_use_is_said(tmp_path: Path, start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"(?s)gateway ended with status 2.*http://127.0.0.1:{port}: .*taken"):
            start(tmp_path, chain(tmp_path), http_port=port)


def test_http_without_its_library_is_refused_before_anything_starts(
    tmp_path: Path, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(LaunchError, match=re.escape(f"HTTP needs aiohttp: {install_command('http')}")):
        start(tmp_path, chain(tmp_path), http_port=free_port())


@pytest.mark.slow
def test_a_request_whose_client_has_gone_is_given_up(tmp_path: Path, start) -> None:
    port = free_port()
    running = start(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 0.0, None, 55.0)]), http_port=port)
    with Client(running.gateway_address) as client, socket.create_connection(("127.0.0.1", port)) as connection:
        body = document({"x": np.ones((1, 4), np.float32)})
        head = f"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        for wanted in (1, 0):
            wait_until(lambda wanted=wanted: client.status().requests_in_hand == wanted, 25.0)  # less than it takes
            connection.close()
