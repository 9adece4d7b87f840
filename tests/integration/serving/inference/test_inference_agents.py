"""The Open Inference Protocol on agents: operators are models; readiness, time limits and draining."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean.serving import Client, Running
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import Link
from tests.integration.serving.inference.calls import SERVICE, address, infer_on
from tests.integration.serving.inference.triton_remote import Remote
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until


def test_an_agent_runs_one_operator_alone(tiny: Running, remote: Remote) -> None:
    url = address(tiny, "edge-1")
    before, answered = described(url), 6
    found = remote("about", url, "join")
    assert found["server"]["name"] == "jellybean-agent"
    assert {item["name"] for item in found["index"]} == {"left", "join", "split", "sum", "tenth"}
    assert all((item["version"], item["state"]) == ("only", "READY") for item in found["index"])
    assert found["metadata"] == {
        "name": "join",
        "versions": ["only"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": name, "datatype": "FP32", "shape": ["1", "4"]} for name in ("right", "left")],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["1", "4"]}],
    }
    ones = np.ones((1, 4), np.float32)
    head, outputs = remote("infer", url, "join", {"left": 7 * ones, "right": 2 * ones}, request_id="a")
    assert head == {"id": "a", "name": "join", "version": "only"}
    assert outputs["y"].tolist() == [[5, 5, 5, 5]]
    _, outputs = remote("infer", url, "sum", {"x": np.array([[1], [2], [3]], np.float32)}, model_version="only")
    assert outputs["y"].tolist() == [[6]]
    _, outputs = remote("infer", url, "split", {"x": np.array([[1, -2, 3]], np.float32)}, outputs=["y"])
    assert outputs["y"].tolist() == [[1], [3]]
    streamed = remote("stream", url, "left", [{"x": number * ones} for number in range(3)])
    assert [tensors["y"][0, 0] for _, tensors, _ in streamed] == [0, 2, 4]
    after = described(url)
    assert dict(after.completed) == dict(before.completed)  # the pipeline's figures
    assert dict(after.runs) == dict(before.runs)
    assert all(after.busy_s[name] > before.busy_s[name] for name in ("join", "sum", "split", "left"))
    (statistics,) = [item for item in remote("about", url, "left")["statistics"] if item["name"] == "left"]
    assert int(statistics["inference_count"]) == before.completed["left"] + answered - 3
    for sent, told in [
        ({"left": ones}, "one tensor per input (right, left), got left"),
        ({"left": ones, "right": np.ones((1, 5), np.float32)}, "input right: expected float32 [1, 4], got float32"),
        ({"left": ones, "right": np.ones((1, 4))}, "got float64 [1, 4]"),
    ]:
        assert remote("refused", url, "join", sent)[0] == "INVALID_ARGUMENT"
        assert told in remote("refused", url, "join", sent)[1]
    two = {"x": np.ones((2, 4), np.float32)}
    assert "leading dimension of 1" in remote("refused", url, "left", two)[1]
    assert remote("refused", url, "right", {"x": ones}) == (
        "NOT_FOUND",
        "no model 'right' here; served: left, join, split, sum, tenth",
    )


def described(url: str) -> agent_pb2.AgentStatus:
    with grpc.insecure_channel(url) as channel:
        return agent_pb2_grpc.AgentStub(channel).Describe(agent_pb2.DescribeRequest(), timeout=60)


# -- time and leaving --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readiness_time_limits_and_leaving(tmp_path: Path, remote: Remote, start) -> None:
    running = start(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 0.0, None, 2.0)]))
    url = running.gateway_address
    ones = {"x": np.ones((1, 4), np.float32)}
    status, reason = remote("refused", url, "tiny", ones, timeout=50_000)
    assert status == "DEADLINE_EXCEEDED"
    assert "no answer of triple within 0.05 s" in reason
    private = Client(address(running, "gateway"))
    with Client(url) as client, private, ThreadPoolExecutor(2) as pool, grpc.insecure_channel(url) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=120)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        in_hand = pool.submit(client.infer, ones)
        wait_until(lambda: client.status().requests_in_hand >= 1)
        left = pool.submit(private.drain, 30.0)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        told = "the gateway is draining: it takes no new requests"
        assert remote("readiness", url, "tiny") == (True, False, False, [("UNAVAILABLE", told)])
        assert remote("refused", url, "tiny", ones) == ("UNAVAILABLE", told)
        assert in_hand.result(60)["triple"].tolist() == [[6, 6, 6, 6]]
        assert left.result(60) == 0


def test_a_gateway_whose_workers_are_not_there_yet_is_live_but_not_ready(tmp_path: Path, remote: Remote) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(chain(tmp_path)), encoding="utf-8")
    sockets = {"": "g", "edge-1": "1", "cloud-1": "2"}
    (tmp_path / "peers.json").write_text(
        json.dumps({name: f"unix:{tmp_path}/{of}" for name, of in sockets.items()}), encoding="utf-8"
    )
    files = [f"--{name}={tmp_path / file}" for name, file in (("plan", "plan.json"), ("peers", "peers.json"))]
    files += [f"--links={tmp_path / 'links'}", f"--address-file={tmp_path / 'address'}"]
    with subprocess.Popen([sys.executable, "-m", "jellybean.serving.gateway_main", *files]) as gateway:
        try:
            wait_until((tmp_path / "address").exists)
            url = (tmp_path / "address").read_text(encoding="utf-8")
            told = "still starting: 0 of 2 workers are ready, waiting for edge-1, cloud-1; "
            told += "no worker of double, triple is there"
            assert remote("readiness", url, "tiny") == (True, False, False, [("UNAVAILABLE", told)])
            assert remote("refused", url, "tiny", {"x": np.ones((1, 4), np.float32)}) == ("UNAVAILABLE", told)
            with Client(url) as client:
                assert 'jellybean_gateway_requests_total{outcome="unavailable"} 1.0' in client.metrics()
                assert 'jellybean_gateway_requests_total{outcome="server_error"} 0.0' in client.metrics()
            assert remote("refusals", url, "tiny")["load"][0] == "FAILED_PRECONDITION"
            with grpc.insecure_channel(url) as channel:
                health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
                assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        finally:
            gateway.terminate()
    assert gateway.returncode == 0


@pytest.mark.slow
def test_an_agent_finishes_what_was_asked_of_it_alone_before_it_leaves(tmp_path: Path, remote: Remote, start) -> None:
    running = start(tmp_path, chain(tmp_path, slow_s=1.0))
    url = address(running, "edge-1")
    ones = {"x": np.ones((1, 4), np.float32)}
    status, reason = remote("refused", url, "double", ones, timeout=100_000)
    assert (status, reason) == ("DEADLINE_EXCEEDED", "no answer of double within 0.1 s: 0 requests wait")
    wait_until(lambda: not described(url).requests_in_hand)  # the run of the one that was given up
    request = pb.ModelInferRequest(model_name="double", raw_input_contents=[ones["x"].tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    with grpc.insecure_channel(url) as channel:
        waiting = [infer_on(channel).future(request.SerializeToString()) for _ in range(3)]
        wait_until(lambda: described(url).requests_in_hand >= 3)
        os.kill(next(process.pid for process in running.state.processes if process.name == "edge-1"), signal.SIGTERM)
        with pytest.raises(grpc.RpcError, match="takes no requests"):
            while True:
                infer_on(channel)(request.SerializeToString(), timeout=60)
        for answer in waiting:
            assert np.frombuffer(answer.result(60).raw_output_contents[0], np.float32).tolist() == [2, 2, 2, 2]
