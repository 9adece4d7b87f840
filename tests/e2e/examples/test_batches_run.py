"""A burst of requests through a plan with batches: a real model behind the gateway, from documents to answers."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import onnxruntime
import pytest

from jellybean.serving import Client, running_state
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from tests.support.command_line import jellybean_process
from tests.support.paths import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.alone]

MODEL = EXAMPLES / "digits/models/shape-mlp.onnx"
WORKFLOW = """\
kind: Workflow
name: crops
sources:
  crop: {{tier: edge, rate: 15/s, message: 1 KiB}}
operators:
  shape: {{inputs: [crop], variants: {{mlp: {{model: models/shape-mlp.onnx, sha256: {sha256}}}}}}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers:
  box: {tier: edge, count: 2, price: 0.1 USD/h, speed: 0.002}
limits: {utilisation: 0.7}
"""
PROFILES = """\
kind: Profiles
operators:
  shape: {mlp: {message: 40 B, latency: {box: {1: 80 ms, 4: 90 ms}}}}
"""


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Served by a device so slow that requests must wait for each other, however slowly this machine sends them."""
    directory = tmp_path_factory.mktemp("projects") / "crops"
    (directory / "models").mkdir(parents=True)
    shutil.copy(MODEL, directory / "models")
    (directory / "workflow.yaml").write_text(
        WORKFLOW.format(sha256=hashlib.sha256(MODEL.read_bytes()).hexdigest()), encoding="utf-8"
    )
    (directory / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (directory / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    jellybean_process("plan", str(directory))
    started = json.loads(jellybean_process("up", str(directory), "--detach", "--json").stdout)
    assert started["plan"] == json.loads((directory / "plan.json").read_text(encoding="utf-8"))["hash"]
    assert (started["workflow"], started["workers"]) == ("crops", {"box-1": "ready"})
    assert (started["address"], started["http"], started["metrics"]) == (None, None, None)
    yield directory
    jellybean_process("down", str(directory))


def test_batches_pay_for_one_box_instead_of_two(crops: Path) -> None:
    answer = json.loads(jellybean_process("plan", str(crops), "--json").stdout)
    assert [(place["count"], place["batch"]) for place in answer["placements"]] == [(1, 4)]
    alone = json.loads(jellybean_process("plan", str(crops), "--json", "--set", "limits.batch=1").stdout)
    assert [(place["count"], place["batch"]) for place in alone["placements"]] == [(2, 1)]
    assert alone["cost_usd_per_h"]["total"] == pytest.approx(2 * answer["cost_usd_per_h"]["total"])
    jellybean_process("plan", str(crops))  # what is up again stands in plan.json


def test_every_request_of_a_burst_gets_its_own_answer(crops: Path) -> None:
    data = np.random.default_rng(1).integers(0, 255, (80, 1, 16, 16), dtype=np.uint8)
    session = onnxruntime.InferenceSession(str(MODEL))
    with Client.of(crops) as client, ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda crop: client.infer({"crop": crop})["shape"], data))
    for crop, answer in zip(data, answers, strict=True):
        (expected,) = session.run(None, {"find": crop})
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    (status,) = [
        describe(process.address) for process in running_state(crops).processes if process.name.startswith("box")
    ]
    assert status.completed["shape"] == len(data)
    assert status.runs["shape"] <= len(data) // 2, "hardly any run had several requests"


def test_another_plan_takes_over(crops: Path) -> None:
    crop = np.zeros((1, 16, 16), np.uint8)
    with Client.of(crops) as client:
        before = client.infer({"crop": crop})["shape"]
        alone = jellybean_process("apply", str(crops), "--set", "limits.batch=1")
        assert "serving the new plan of crops with 2 workers" in alone.stdout
        again = jellybean_process("apply", str(crops))  # it goes on with the options of plan.json
        assert "already served with this plan" in again.stdout
        assert "plan.json is the plan for --set limits.batch=1" in again.stderr
        np.testing.assert_array_equal(client.infer({"crop": crop})["shape"], before)
        assert len(client.status().workers) == 2


def describe(address: str) -> agent_pb2.AgentStatus:
    with grpc.insecure_channel(address) as channel:
        return agent_pb2_grpc.AgentStub(channel).Describe(agent_pb2.DescribeRequest(), timeout=60)
