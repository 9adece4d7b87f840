"""The Open Inference Protocol over a worker in simulated time: models, statistics, streams, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import InvalidInputError
from jellybean_agent.rpc.frames import DATA, END_STREAM, frame
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.http2_client import content, message, open_call, settle
from tests.unit.agent.inference.served_operators import SERVICE, Served, infer, served


def test_the_server_and_its_models_describe_themselves(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        assert (await it.call("ServerLive", pb.ServerLiveRequest())).live
        assert (await it.call("ServerReady", pb.ServerReadyRequest())).ready
        about = await it.call("ServerMetadata", pb.ServerMetadataRequest())
        assert (about.name, list(about.extensions)) == (
            "jellybean-agent",
            ["model_repository", "model_configuration", "statistics"],
        )
        assert about.version
        assert (await it.call("ModelReady", pb.ModelReadyRequest(name="add", version="only"))).ready
        model = await it.call("ModelMetadata", pb.ModelMetadataRequest(name="both"))
        assert (model.name, list(model.versions), model.platform) == ("both", ["only"], "onnxruntime_onnx")
        assert [(port.name, port.datatype, list(port.shape)) for port in model.inputs] == [
            ("x", "FP32", [1, 2]),
            ("z", "FP32", [1, 2]),
        ]
        assert [(port.name, port.datatype, list(port.shape)) for port in model.outputs] == [("y", "FP32", [-1, 2])]
        config = (await it.call("ModelConfig", pb.ModelConfigRequest(name="add"))).config
        assert (config.name, config.platform, config.backend) == ("add", "onnxruntime_onnx", "jellybean")
        assert [(port.name, port.data_type, list(port.dims)) for port in (*config.input, *config.output)] == [
            ("x", pb.DataType.Value("TYPE_FP32"), [1, 2]),
            ("y", pb.DataType.Value("TYPE_FP32"), [-1, 2]),
        ]
        index = await it.call("RepositoryIndex", pb.RepositoryIndexRequest())
        assert [(found.name, found.version, found.state) for found in index.models] == [
            ("add", "only", "READY"),
            ("both", "only", "READY"),
        ]

    served(tmp_path, test)


def test_an_agent_that_loads_or_drains_says_so(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        it.worker.state = "draining"
        assert (await it.call("ServerLive", pb.ServerLiveRequest())).live
        assert not (await it.call("ServerReady", pb.ServerReadyRequest())).ready
        assert not (await it.call("ModelReady", pb.ModelReadyRequest(name="add"))).ready
        index = await it.call("RepositoryIndex", pb.RepositoryIndexRequest())
        assert {(found.state, found.reason) for found in index.models} == {("UNAVAILABLE", "worker edge-1 is draining")}
        assert not (await it.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))).models
        reason = "worker edge-1 is draining: it takes no requests"
        assert await it.refusal("ModelInfer", infer()) == (grpc.StatusCode.UNAVAILABLE, reason)
        it.worker.state = "loading"
        it.worker.executors = {}
        status = await it.refusal("ModelMetadata", pb.ModelMetadataRequest(name="add"))
        assert status == (grpc.StatusCode.UNAVAILABLE, "worker edge-1 is loading")

    served(tmp_path, test, fast=True)


def test_statistics_count_requests_and_runs(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        for _ in range(2):
            await it.call("ModelInfer", infer())
        it.worker.sessions["add"].fault = InvalidInputError("no")
        await it.refusal("ModelInfer", infer(), wait_s=1.1)
        it.worker.sessions["add"].fault = None
        it.worker.receive("r0", 0, "add")
        await asyncio.sleep(1.1)
        (found,) = (await it.call("ModelStatistics", pb.ModelStatisticsRequest(name="add"))).model_stats
        assert (found.name, found.version, found.inference_count, found.execution_count) == ("add", "only", 3, 3)
        assert (found.inference_stats.success.count, found.inference_stats.fail.count) == (3, 1)
        assert found.inference_stats.compute_infer.count == 3
        assert found.inference_stats.compute_infer.ns > 0
        both = (await it.call("ModelStatistics", pb.ModelStatisticsRequest())).model_stats
        assert [stats.name for stats in both] == ["add", "both"]
        assert (await it.refusal("ModelStatistics", pb.ModelStatisticsRequest(name="x")))[
            0
        ] is grpc.StatusCode.NOT_FOUND

    served(tmp_path, test)


def test_what_is_not_served_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        for name, reason in (
            ("SystemSharedMemoryStatus", "send tensors in the request"),
            ("CudaSharedMemoryRegister", "send tensors in the request"),
            ("TraceSetting", "read the metrics instead"),
            ("LogSettings", "cannot be changed from here"),
        ):
            status, text = await it.refusal(name, b"")
            assert (status, reason in text) == (grpc.StatusCode.UNIMPLEMENTED, True)
        for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            kind = getattr(pb, f"{name}Request")
            status, text = await it.refusal(name, kind(model_name="add"))
            assert status is grpc.StatusCode.FAILED_PRECONDITION
            assert "the plan decides what is loaded, add too" in text
            assert (await it.refusal(name, kind(model_name="x")))[0] is grpc.StatusCode.NOT_FOUND
            assert (await it.refusal(name, kind(repository_name="r")))[1] == "no repository 'r': leave the name empty"
        status, text = await it.refusal("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="r"))
        assert status is grpc.StatusCode.NOT_FOUND

    served(tmp_path, test)


def test_requests_of_a_stream_are_answered_in_their_order_and_fail_alone(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        requests = [infer(1, id="a"), pb.ModelInferRequest(model_name="no", id="b"), infer(3, id="c")]
        data = b"".join(message(request.SerializeToString()) for request in requests) + message(b"\xff\xff")
        answers = await it.client.send(open_call(1, f"{SERVICE}/ModelStreamInfer") + frame(DATA, END_STREAM, 1, data))
        await asyncio.sleep(2.2)
        answers += await it.client.frames()
        got, found = content(answers, 1), []
        while got:
            size = int.from_bytes(got[1:5], "big")
            found.append(pb.ModelStreamInferResponse.FromString(got[5 : 5 + size]))
            got = got[5 + size :]
        assert [one.infer_response.id for one in found] == ["a", "b", "c", ""]
        assert [one.error_message for one in found] == [
            "",
            "no model 'no' here; served: add, both (NOT_FOUND)",
            "",
            "the bytes are no ModelInferRequest (INVALID_ARGUMENT)",
        ]
        assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in found)
        assert [np.frombuffer(found[at].infer_response.raw_output_contents[0], "<f4")[0] for at in (0, 2)] == [2.0, 4.0]
        assert it.client.status(answers, 1) == (0, "")

    served(tmp_path, test)


def test_the_requests_of_a_stream_are_cancelled_with_it(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        data = b"".join(message(infer(number).SerializeToString()) for number in range(5))
        await it.client.send(open_call(1, f"{SERVICE}/ModelStreamInfer") + frame(DATA, 0, 1, data))
        assert it.worker.driver.direct_calls_in_flight == 5
        await it.client.send(frame(3, 0, 1, (8).to_bytes(4, "big")))
        await settle(30)
        assert it.worker.driver.direct_calls_in_flight == 0
        await asyncio.sleep(5.0)
        assert it.worker.sessions["add"].runs == [[0.0]]

    served(tmp_path, test)


def test_an_unforeseen_fault_ends_its_call_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(it: Served) -> None:
        async def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        backend: Any = it.service._served
        backend.infer = broken
        status = await it.refusal("ModelInfer", infer())
        assert status == (grpc.StatusCode.INTERNAL, "failed unexpectedly: the server's log says why")

        async def one() -> AsyncIterator[bytes]:
            yield infer(id="a").SerializeToString()

        class Context:
            def time_remaining(self) -> None:
                return None

        (answer,) = [found async for found in it.service.model_stream_infer(one(), Context())]
        assert answer.error_message == "failed unexpectedly: the server's log says why (INTERNAL)"
        assert answer.infer_response.id == "a"

    served(tmp_path, test)
    failed = [record for record in caplog.records if record.name == "jellybean.inference" and record.exc_info]
    assert [record.getMessage() for record in failed] == [
        "a call failed unexpectedly",
        "a request of a stream failed unexpectedly",
    ]
