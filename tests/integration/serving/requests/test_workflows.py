"""Requests through real processes: chains over links, joins, fan-outs, replicas, and inputs that do not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from jellybean.serving import Client, RequestError, Running
from jellybean.serving.local import launcher
from jellybean_agent import encode_tensor
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from jellybean_solver import Link
from tests.support.tiny_models import chain, difference, fan_out, gather, make_plan, positives, scale, total

LATENCY_S, BANDWIDTH = 0.03, 1000.0


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A join of two branches, a nested fan-out that is gathered, and a sink below a fan-out, over three workers."""
    root = tmp_path_factory.mktemp("everything")
    models = root / "models"
    operators = {
        "left": (["x"], scale(models / "left.onnx", 2.0)),
        "right": (["x"], scale(models / "right.onnx", 5.0)),
        "join": (["right", "left"], difference(models / "join.onnx", "left", "right")),
        "split": (["y"], positives(models / "split.onnx")),
        "each": ([fan_out("split", "each")], scale(models / "each.onnx", 10.0, 1)),
        "sum": ([gather("each", "sum")], total(models / "sum.onnx")),
    }
    route = dict.fromkeys(operators, "edge-1") | {"right": "cloud-1", "join": "cloud-2", "each": "cloud-1"}
    both = [(0.5, route), (0.5, route | {"sum": "cloud-2", "left": "cloud-1"})]
    links = [Link("edge", "cloud", 0.1, None, 0.001)]
    running = launcher.up(root, make_plan(root, operators, both, sources={"x": "edge", "y": "edge"}, links=links))
    yield running
    running.down()


def floats(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_join_is_wired_by_name(everything: Running) -> None:
    with Client(everything.gateway_address) as client:
        for value in range(1, 9):
            answer = client.infer({"x": floats(*[value] * 4), "y": floats(1.0)})
            np.testing.assert_allclose(answer["join"], floats(*[-3.0 * value] * 4))


@pytest.mark.parametrize("values", [(1, 2, 3), (4, -1, -2), (-1, -2, -3), (-1,), tuple(range(1, 200))])
def test_fan_out_and_gather(everything: Running, values: tuple[float, ...]) -> None:
    with Client(everything.gateway_address) as client:
        for _ in range(4):
            answer = client.infer({"x": floats(0, 0, 0, 0), "y": floats(*values)})
            assert answer["sum"].tolist() == [[10.0 * sum(v for v in values if v > 0)]]


@pytest.mark.slow
@pytest.mark.parametrize(("values", "expected"), [((3, -1, 2, 1), [[30], [20], [10]]), ((-1, -2), [])])
def test_children_of_a_sink_come_in_order(tmp_path: Path, start, values, expected) -> None:
    operators = {
        "split": (["y"], positives(tmp_path / "models/split.onnx")),
        "each": ([fan_out("split", "each")], scale(tmp_path / "models/each.onnx", 10.0, 1)),
    }
    routes = [(1.0, {"split": "edge-1", "each": "edge-2"})]
    running = start(tmp_path, make_plan(tmp_path, operators, routes, sources={"y": "edge"}))
    with Client(running.gateway_address) as client:
        answer = client.infer({"y": floats(*values)})["each"]
    assert answer.tolist() == expected
    assert answer.dtype == np.float32
    assert answer.shape == (len(expected), 1)


def test_chain_over_a_link_takes_its_latency_and_bandwidth(tmp_path: Path, start) -> None:
    link = Link("edge", "cloud", 0.1, BANDWIDTH, LATENCY_S)
    running = start(tmp_path, chain(tmp_path, links=[link]))
    with Client.of(tmp_path) as client:
        began = time.monotonic()
        assert client.infer({"x": floats(1, 2, 3, 4)})["triple"].tolist() == [[6, 12, 18, 24]]
        one_s = time.monotonic() - began
        assert one_s >= LATENCY_S + 16 / BANDWIDTH
        channel = grpc.insecure_channel(running.gateway_address)
        stub = gateway_pb2_grpc.GatewayStub(channel)
        request = gateway_pb2.InferRequest(inputs={"x": encode_tensor(floats(1, 1, 1, 1))})
        began = time.monotonic()
        for answer in [stub.Infer.future(request) for _ in range(10)]:
            answer.result(30)
        assert time.monotonic() - began >= LATENCY_S + 10 * 16 / BANDWIDTH  # one pipe: they cannot overlap on it
        channel.close()
    assert running.state.links_path.exists()


def test_routes_split_by_weight_over_replicas(tmp_path: Path, start) -> None:
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    routes = [(0.75, {"double": "edge-1"}), (0.25, {"double": "edge-2"})]
    running = start(tmp_path, make_plan(tmp_path, operators, routes, sources={"x": "edge"}))
    with Client(running.gateway_address) as client:
        for _ in range(40):
            client.infer({"x": floats(1, 1, 1, 1)})
    assert completed(running) == {"edge-1": 30, "edge-2": 10}


def completed(running: Running) -> dict[str, int]:
    found = {}
    for process in running.state.processes:
        if process.name != "gateway":
            with grpc.insecure_channel(process.address) as channel:
                status = agent_pb2_grpc.AgentStub(channel).Describe(agent_pb2.DescribeRequest(), timeout=60)
            assert status.state == "ready"
            found[process.name] = sum(status.completed.values())
    return found


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"x": floats(1, 1, 1, 1)}, "one tensor per source"),
        ({"x": floats(1, 1, 1, 1), "y": floats(1), "z": floats(1)}, "one tensor per source"),
        ({"x": np.ones((1, 4), np.float64), "y": floats(1)}, "source x: expected float32 [any, 4], got float64 [1, 4]"),
        ({"x": np.ones((1, 5), np.float32), "y": floats(1)}, "source x: expected float32 [any, 4], got float32 [1, 5]"),
        ({"x": np.ones((4,), np.float32), "y": floats(1)}, "source x: expected float32 [any, 4], got float32 [4]"),
        ({"x": np.ones((2, 4), np.float32), "y": floats(1)}, "leading dimension of 1"),
        ({"x": np.ones((1, 4), np.complex64), "y": floats(1)}, "complex64"),
        ({"x": np.zeros((1, 17 * 2**20), np.float32), "y": floats(1)}, "above the limit"),
    ],
)
def test_inputs_that_do_not_fit(everything: Running, tensors: dict[str, np.ndarray], told: str) -> None:
    with Client(everything.gateway_address) as client:
        with pytest.raises(RequestError) as caught:
            client.infer(tensors)
        assert caught.value.status == "INVALID_ARGUMENT"
        assert told in caught.value.reason
        assert client.status().state == "ready"


def test_tensors_that_lie_about_their_size(everything: Running) -> None:
    with grpc.insecure_channel(everything.gateway_address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for tensor, told in [
            (agent_pb2.Tensor(dtype="float32", shape=[1, 4], data=b"1234"), "takes 16 bytes, but 4 came"),
            (agent_pb2.Tensor(dtype="float32", shape=[2**62, 2**62], data=b""), "but 0 came"),
            (agent_pb2.Tensor(dtype="object", shape=[1], data=b"12345678"), "unknown dtype"),
            (agent_pb2.Tensor(dtype="float32", shape=[-1, 4], data=b""), "negative"),
        ]:
            request = gateway_pb2.InferRequest(inputs={"x": tensor, "y": encode_tensor(floats(1))})
            with pytest.raises(grpc.RpcError) as caught:
                stub.Infer(request, timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert told in caught.value.details()


@pytest.mark.slow
def test_a_failing_inference_fails_its_request_only(tmp_path: Path, start) -> None:
    """The sum of no floats is refused by nobody but a reshape to a fixed size: onnxruntime itself fails."""
    operators = {
        "keep": (["x"], positives(tmp_path / "models/keep.onnx")),
        "minus": (["keep"], scale(tmp_path / "models/minus.onnx", -1.0, 1)),
        "fixed": (["minus"], difference_of_one(tmp_path / "models/fixed.onnx")),
    }
    routes = [(1.0, {"keep": "edge-1", "minus": "edge-1", "fixed": "edge-2"})]
    running = start(tmp_path, make_plan(tmp_path, operators, routes, sources={"x": "edge"}))
    with Client(running.gateway_address) as client:
        assert client.infer({"x": floats(1, 2, 3, 4)})["fixed"].shape == (2, 2)
        with pytest.raises(RequestError, match=r"worker edge-2, operator fixed: onnxruntime"):
            client.infer({"x": floats(1, 2, 3)})
        assert client.infer({"x": floats(4, 3, 2, 1)})["fixed"].tolist() == [[-4, -3], [-2, -1]]


def difference_of_one(path: Path) -> str:
    from onnx import helper

    from tests.support.tiny_models import save

    node = helper.make_node("Reshape", ["v", "shape"], ["y"])
    return save(path, [node], {"v": ["n", 1]}, ("y", [2, 2]), shape=np.array([2, 2], np.int64))
