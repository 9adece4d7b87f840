"""Models that crash, hang, grow or are none, against a real agent: the request fails, the agent serves on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from jellybean_agent import Executor, ModelError, file_sha256
from jellybean_agent.execution.onnx_scan import scan_model
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_protos.inference.v2 import inference_pb2_grpc
from tests.support.tiny_models import make_plan, save, scale, spin
from tests.support.waiting import wait_until

RUN_LIMIT_S = 4.0  # for one model that does not end; the others never take so long, on a busy machine either


def bomb(path: Path) -> str:
    """Zeros of a shape that the request names: 16 bytes in, as much as is asked for out."""
    nodes = [
        helper.make_node("Cast", ["x"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["sizes", "flat"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["y"]),
    ]
    return save(path, nodes, {"x": [1, 4]}, ("y", ["a", "b", "c", "d"]), flat=np.array([-1], np.int64))


def infer_request(operator: str, *values: float) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=operator, raw_input_contents=[np.float32(values).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return request


@dataclass
class Alone:
    """An agent without a gateway, asked for its operators by themselves."""

    process: psutil.Popen
    channel: grpc.Channel

    def infer(self, operator: str, *values: float, timeout_s: float = 30.0) -> np.ndarray:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        answer = stub.ModelInfer(infer_request(operator, *values), timeout=timeout_s)
        return np.frombuffer(answer.raw_output_contents[0], np.float32)

    def is_ready(self) -> bool:
        try:
            status = agent_pb2_grpc.AgentStub(self.channel).Describe(agent_pb2.DescribeRequest(), timeout=20)
        except grpc.RpcError:
            return False
        return status.state == "ready"

    def serves(self) -> bool:
        return self.infer("double", 1, 2, 3, 4).tolist() == [2, 4, 6, 8]

    def host(self) -> psutil.Process:
        """The process that models run in: the child of the agent's child."""
        ((host,),) = [child.children() for child in self.process.children()]
        return host


@contextmanager
def started(root: Path) -> Iterator[Alone]:
    """An agent that is ready. It is killed at the end."""
    makers = {"double": lambda path: scale(path, 2.0), "bomb": bomb, "spin": spin}
    operators = {name: (["x"], make(root / f"models/{name}.onnx")) for name, make in makers.items()}
    route = dict.fromkeys(operators, "edge-1")
    (root / "plan.json").write_text(
        json.dumps(make_plan(root, operators, [(1.0, route)], sources={"x": "edge"})), encoding="utf-8"
    )
    (root / "peers.json").write_text(
        json.dumps({"": f"unix:{root}/g.sock", "edge-1": f"unix:{root}/a.sock"}), encoding="utf-8"
    )
    files = [f"--plan={root}/plan.json", f"--peers={root}/peers.json", f"--root={root}", f"--listen=unix:{root}/a.sock"]
    limits = [f"--max-run-s={RUN_LIMIT_S}", "--model-memory-mib=768", "--drain-s=0"]
    command = [sys.executable, "-m", "jellybean_agent", "--worker=edge-1", *files, *limits]
    process = psutil.Popen(command, stderr=subprocess.DEVNULL)
    with grpc.insecure_channel(f"unix:{root}/a.sock") as channel:
        found = Alone(process, channel)
        try:
            wait_until(found.is_ready)
            yield found
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    with started(tmp_path_factory.mktemp("contained")) as found:
        yield found


def refusal(alone: Alone, operator: str, *values: float) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        alone.infer(operator, *values)
    assert alone.serves()
    return caught.value.code(), caught.value.details()


def test_a_model_that_allocates_too_much(alone: Alone) -> None:
    """16 bytes that ask for 4 GiB, and for 2 EiB."""
    for values in ((1024, 1024, 1024, 1), (2**20, 2**20, 2**20, 1)):
        status, reason = refusal(alone, "bomb", *values)
        assert status in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT), reason
        assert any(text in reason for text in ("onnxruntime", "limit", "Failed to allocate memory")), reason
    assert alone.infer("bomb", 2, 3, 1, 1).shape == (6,)


def test_an_answer_that_is_too_large_for_its_client(alone: Alone) -> None:
    """80 MiB, which the agent refuses itself: with and without the fast path, and on a stream."""
    reason = f"{80 * 2**20} bytes"
    request = infer_request("bomb", 1024, 1024, 20, 1)
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(alone.channel)
    (streamed,) = stub.ModelStreamInfer(iter([request]), timeout=30)
    assert reason in streamed.error_message
    assert "(INTERNAL)" in streamed.error_message
    request.parameters["priority"].int64_param = 1
    for each in (request, infer_request("bomb", 1024, 1024, 20, 1)):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(each, timeout=30)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert reason in caught.value.details()
        assert f"above the limit of {64 * 2**20}" in caught.value.details()
    assert alone.serves()


def test_a_model_that_does_not_end(alone: Alone) -> None:
    assert alone.infer("spin", 3, 0, 0, 0).tolist() == [3]
    status, reason = refusal(alone, "spin", 2**40, 0, 0, 0)  # before the client's own time is up
    assert (status, "took longer than 4 s" in reason) == (grpc.StatusCode.INTERNAL, True), reason


def test_a_model_that_crashes(alone: Alone) -> None:
    """The native code's segmentation fault, sent while it runs."""
    assert alone.serves()
    host = alone.host()
    before_s = host.cpu_times().user
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(refusal, alone, "spin", 2**40, 0, 0, 0)
        wait_until(lambda: host.cpu_times().user > before_s + 0.05)
        host.send_signal(signal.SIGSEGV)
        status, reason = running.result(60)
    assert status is grpc.StatusCode.INTERNAL
    assert "the model crashed: its process was killed by SIGSEGV; it is loaded again" in reason


def test_a_killed_agent_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path) as agent:
        assert agent.serves()
        family = agent.process.children(recursive=True)
        assert len(family) == 2
        os.kill(agent.process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=60)
        assert not left


def test_operators_of_other_domains_are_refused_and_own_functions_are_not(tmp_path: Path) -> None:
    node = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    path = tmp_path / "m.onnx"
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    with pytest.raises(ModelError, match=r"operator mine\.Twice is not of ai\.onnx, ai\.onnx\.ml, com\.microsoft"):
        Executor(path, file_sha256(path), ("x",))
    own = helper.make_function("mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[own])
    assert scan_model(model.SerializeToString()).unknown_operator == ""
    path.write_bytes(model.SerializeToString())
    found = Executor(path, file_sha256(path), ("x",)).run((np.float32([[1, 2]]),))
    assert found.outputs["y"].tolist() == [[2, 4]]


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """Opening one would wait for ever for somebody who writes."""
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="not a file"):
        Executor(tmp_path / "m.onnx", "", ("x",))
