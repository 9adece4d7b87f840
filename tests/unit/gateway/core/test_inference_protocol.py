"""The Open Inference Protocol at a gateway's process, by gRPC and HTTP: requests, sequences and failures."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2
from tests.support.gateway_in_process import Document, running_gateway
from tests.support.ports import free_port
from tests.support.scripted_workers import INPUTS, add_up, hold, run
from tests.support.tiny_models import make_plan, recurrent
from tests.unit.gateway.core.process_calls import model_call, model_request, refused

Code = grpc.StatusCode


def test_the_inference_protocol(plan: Document, tmp_path: Path) -> None:
    """The first call of a shape is read in full, later ones are not; both have the same answers."""

    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            infer = model_call(gateway.channel)
            for request_id in ("a", "b", "b", ""):
                answer = await infer(model_request(request_id), timeout=20.0)
                assert (answer.model_name, answer.model_version) == ("tiny", gateway.view.hash[:12])
                assert answer.id == request_id
                (output,) = answer.outputs
                assert (output.name, output.datatype, list(output.shape)) == ("double", "FP32", [1, 4])
                assert list(answer.raw_output_contents) == [struct.pack("4f", 1, 2, 3, 4)]
            (worker,) = gateway.workers.values()
            assert len(worker.received) == 4
            wrong = model_request()
            wrong.inputs[0].shape[1] = 3
            assert (await refused(infer(wrong, timeout=20.0)))[0] is Code.INVALID_ARGUMENT
            other = model_request()
            other.model_name = "other"
            assert (await refused(infer(other, timeout=20.0)))[0] is Code.NOT_FOUND
            worker.behaviour = lambda worker, message: worker.fail(message, Code.INTERNAL, "broken")
            assert await refused(infer(model_request(), timeout=20.0)) == (
                Code.INTERNAL,
                "worker edge-1, operator double: broken",
            )
            worker.behaviour = hold
            status, reason = await refused(infer(model_request(), timeout=2.0))
            assert status is Code.DEADLINE_EXCEEDED
            assert reason.startswith("no answer of double within ")
            found = await gateway.status()
            assert (found.answered, found.failed, found.expired) == (4, 4, 1)

    run(test())


def test_an_answer_that_the_inference_protocol_cannot_hold(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_gateway(plan, tmp_path) as gateway:
            (worker,) = gateway.workers.values()
            strange = agent_pb2.Tensor(dtype="complex64", shape=[1, 1], data=b"\0" * 8)
            worker.behaviour = lambda worker, message: worker.answer(message, strange)
            for _ in range(2):
                status, reason = await refused(model_call(gateway.channel)(model_request(), timeout=20.0))
                assert status is Code.INTERNAL
                assert "complex64" in reason

    run(test())


def test_sequences_of_the_inference_protocol_are_streams(tmp_path: Path) -> None:
    operators = {"remember": (["x"], recurrent(tmp_path / "models/remember.onnx", 0.9))}
    states = {"remember": (("state", "state_next"),)}
    route = [(1.0, {"remember": "edge-1"})]
    document = make_plan(tmp_path, operators, route, sources={"x": "edge"}, states=states)

    async def test() -> None:
        async with running_gateway(document, tmp_path, behaviours={"edge-1": add_up}) as gateway:
            infer = model_call(gateway.channel)

            async def chunk(*, start: bool = False, end: bool = False) -> float:
                request = model_request()
                request.parameters["sequence_id"].int64_param = 7
                request.parameters["sequence_start"].bool_param = start
                request.parameters["sequence_end"].bool_param = end
                answer = await infer(request, timeout=20.0)
                return float(struct.unpack("4f", answer.raw_output_contents[0])[0])

            assert [await chunk(start=True), await chunk(), await chunk(end=True)] == [1.0, 2.0, 3.0]
            assert (await refused(chunk()))[0] is Code.NOT_FOUND
            for _ in range(2):
                assert (await refused(infer(model_request(), timeout=20.0)))[0] is Code.INVALID_ARGUMENT
            stream = gateway_pb2.Stream(id="s", begins=True, chunk=1)
            first = await gateway.infer(inputs=INPUTS, stream=stream)
            assert first.outputs["remember"] == INPUTS["x"]
            again = await gateway.infer(inputs=INPUTS, stream=gateway_pb2.Stream(id="s", chunk=1))
            assert again.outputs == first.outputs
            assert (await gateway.status()).answered == 5

    run(test())


# The oldest version that is supported has no such keys.
@pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
def test_http(plan: Document, tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}], "id": "a"}
        async with (
            running_gateway(plan, tmp_path, "--http-port", str(port)) as gateway,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):

            async def get(path: str) -> tuple[int, Any]:
                async with http.get(path) as response:
                    return response.status, json.loads(await response.read() or b"null")

            assert (await get("/v2/health/live"))[0] == (await get("/v2/health/ready"))[0] == 200
            assert (await get("/v2/models/tiny/ready"))[0] == 200
            status, about = await get("/v2/models/tiny")
            assert (status, about["platform"], about["versions"]) == (
                200,
                "jellybean_workflow",
                [gateway.view.hash[:12]],
            )
            assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]
            assert about["outputs"] == [{"name": "double", "datatype": "FP32", "shape": [-1, 4]}]
            assert (await get("/v2/models/other"))[0] == 404
            assert (await get("/v2"))[1]["name"] == "jellybean-gateway"
            async with http.post("/v2/models/tiny/infer", json=body) as response:
                answer = await response.json()
            assert (response.status, answer["id"]) == (200, "a")
            assert answer["outputs"][0]["data"] == [1, 2, 3, 4]
            for wrong, code in (({"inputs": []}, 400), ({**body, "inputs": "x"}, 400)):
                async with http.post("/v2/models/tiny/infer", json=wrong) as response:
                    assert response.status == code
                    assert (await response.json())["error"]
            (worker,) = gateway.workers.values()
            await worker.stop()
            await gateway.ready("degraded")
            assert (await get("/v2/health/ready"))[0] != 200
            assert (await get("/v2/health/live"))[0] == 200

    run(test())
