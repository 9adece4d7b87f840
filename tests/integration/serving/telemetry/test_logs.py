"""What a run's processes log of requests that get no answer: one line each, as JSON, without tensors' content."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from onnx import helper

from jellybean.serving import Client, RequestError
from tests.support.tiny_models import make_plan, save, scale
from tests.support.waiting import wait_until


def lines(folder: Path, process: str) -> list[dict]:
    text = (folder / f".jellybean/logs/{process}.log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def refusals(folder: Path, process: str) -> list[dict]:
    return [line for line in lines(folder, process) if "refused" in line["message"] or "failed" in line["message"]]


def test_every_refusal_and_failure_is_one_line_of_json(tmp_path: Path, start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JELLYBEAN_LOG", "json")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    sha256 = save(tmp_path / "models/four.onnx", [node], {"x": [1, "m"]}, ("y", [1, 4]), shape=np.array([1, 4]))
    plan = make_plan(tmp_path, {"four": (["x"], sha256)}, [(1.0, {"four": "edge-1"})], sources={"x": "edge"})
    running = start(tmp_path, plan)
    fits, breaks = np.full((1, 4), 0.123456789, np.float32), np.full((1, 5), 0.123456789, np.float32)
    with Client(running.gateway_address) as client:
        client.infer({"x": fits}, request_id="good")
        for tensor, request, status in (
            (breaks, "broken", "INTERNAL"),
            (fits.astype(np.int8), "of int8", "INVALID_ARGUMENT"),
            (fits, "good", "ALREADY_EXISTS"),
        ):
            with pytest.raises(RequestError) as caught:
                client.infer({"x": tensor}, request_id=request)
            assert caught.value.status == status
        with pytest.raises(RequestError, match="jellybean down"):
            client.drain(0.0)
    with grpc.insecure_channel(running.gateway_address) as channel:  # a model that is not there
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError):
            call(b"\n\x07nothing", timeout=20)

    wait_until(lambda: len(refusals(tmp_path, "gateway")) >= 5 and refusals(tmp_path, "edge-1"))
    told = refusals(tmp_path, "gateway")
    assert [(line.get("request_id"), line["status"], line["level"]) for line in told] == [
        ("broken", "INTERNAL", "warning"),
        ("of int8", "INVALID_ARGUMENT", "info"),
        ("good", "ALREADY_EXISTS", "info"),
        (None, "PERMISSION_DENIED", "warning"),
        (None, "NOT_FOUND", "info"),
    ]
    assert told[0]["message"].startswith("a request failed: worker edge-1, operator four: onnxruntime:")
    assert told[3]["method"] == "/jellybean.gateway.v1.Gateway/Drain"
    (failed,) = refusals(tmp_path, "edge-1")
    assert failed["operator"] == "four"
    assert failed["worker"] == failed["process"] == "edge-1"
    assert failed["request_id"] == told[0]["attempts"]
    assert {"time", "level", "logger", "process", "message"} <= failed.keys()
    every_line = [*lines(tmp_path, "gateway"), *lines(tmp_path, "edge-1")]
    assert not [line for line in every_line if "0.1234" in json.dumps(line)]


def test_a_client_writes_no_line_of_its_own_and_fills_no_log(tmp_path: Path, start) -> None:
    sha256 = scale(tmp_path / "models/two.onnx", 2.0)
    plan = make_plan(tmp_path, {"two": (["x"], sha256)}, [(1.0, {"two": "edge-1"})], sources={"x": "edge"})
    running = start(tmp_path, plan)
    log = tmp_path / ".jellybean/logs/gateway.log"
    forged = "x\n2026-11-28 00:00:00,000 ERROR disk is failing\x1b[2J status=OK"
    with Client(running.gateway_address) as client:
        with pytest.raises(RequestError):
            client.infer({"x": np.ones((1, 3), np.int8)}, request_id=forged)
        for number in range(300):
            with pytest.raises(RequestError):
                client.infer({"x": np.ones((1, 3), np.int8)}, request_id=f"flood-{number}")
            with pytest.raises(RequestError, match="jellybean down"):
                client.drain(0.0)
    wait_until(lambda: "flood-0" in log.read_text(encoding="utf-8"))
    text = log.read_text(encoding="utf-8")
    assert all(character == "\n" or character.isprintable() for character in text)
    assert not [line for line in text.splitlines() if line.startswith("2026-11-28")]
    assert r'request_id="x\\n2026-11-28' in text
    assert text.count("refused: ") < 300
