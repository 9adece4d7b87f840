"""The Open Inference Protocol over a worker in simulated time: descriptions, requests, streams and refusals.

Requests go the fast path, and again the general one: both must give the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import MODEL_INFER_METHOD, AgentError, InferenceService, InvalidInputError, shortest_timeout_s
from jellybean_agent.inference.envelopes import Envelopes, split_request
from jellybean_agent.inference.fast_operators import FastOperators
from jellybean_agent.inference.operators import Operators
from jellybean_agent.rpc.frames import DATA, END_STREAM, frame
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.http2_client import CallServer, Http2Client, content, message, open_call, settle, unary_call
from tests.support.tiny_models import make_plan
from tests.unit.agent.worker.timed_worker import Worker, with_worker

SERVICE = MODEL_INFER_METHOD.rpartition("/")[0]
HASH = "0" * 64


class Served:
    """A worker of two operators behind a server; `fast`: whether requests may take the fast path."""

    def __init__(self, worker: Worker, *, fast: bool) -> None:
        self.worker = worker
        self.refused: list[AgentError] = []
        operators = Operators(worker)
        self.service = InferenceService(operators, self.refused.append)
        self.calls = CallServer()
        self.calls.server.add_generic_rpc_handlers((self.service.handler(),))
        if fast:
            self.calls.server.add_raw(MODEL_INFER_METHOD, FastOperators(operators))
        self.client = Http2Client(self.calls.server)
        self._numbers = iter(range(1, 9999, 2))

    async def start(self) -> None:
        await self.client.greet()

    async def call(self, name: str, request: Any, response: Any = None, wait_s: float = 1.1) -> Any:
        """What a method answers: a response, or (number of the status, reason)."""
        number = next(self._numbers)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answers = await self.client.send(unary_call(number, data, f"{SERVICE}/{name}"))
        await asyncio.sleep(wait_s)
        answers += await self.client.frames()
        status = self.client.status(answers, number)
        if status[0]:
            return status
        kind = response or getattr(pb, f"{name}Response")
        return kind.FromString(content(answers, number)[5:])

    async def refusal(self, name: str, request: Any, wait_s: float = 0.0) -> tuple[grpc.StatusCode, str]:
        """The status and the reason of a refused call."""
        number, reason = await self.call(name, request, wait_s=wait_s)
        return next(code for code in grpc.StatusCode if code.value[0] == number), reason


def served(folder: Path, test: Callable[[Served], Awaitable[None]], *, fast: bool = False) -> None:
    async def run(worker: Worker) -> None:
        found = Served(worker, fast=fast)
        await found.start()
        await test(found)

    operators = {"add": (["x"], HASH), "both": (["x", "z"], HASH)}
    routes = [(1.0, dict.fromkeys(operators, "edge-1"))]
    document = make_plan(folder, operators, routes, sources={"x": "edge", "z": "edge"})
    with_worker(document, "edge-1", folder, run)


def infer(value: float = 1.0, model: str = "add", **more: Any) -> pb.ModelInferRequest:
    """A request with raw contents for each input."""
    request = pb.ModelInferRequest(model_name=model, **more)
    for name in ("x",) if model == "add" else ("x", "z"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
        request.raw_input_contents.append(np.full((1, 2), value, "<f4").tobytes())
    return request


paths = pytest.mark.parametrize("fast", [False, True], ids=["general", "fast"])


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


@paths
def test_a_request_is_answered_with_its_id_and_the_outputs_that_it_names(tmp_path: Path, fast: bool) -> None:
    async def test(it: Served) -> None:
        for number in range(3):
            answer = await it.call("ModelInfer", infer(number, id=f"request {number}"))
            assert (answer.model_name, answer.model_version, answer.id) == ("add", "only", f"request {number}")
            assert [(out.name, out.datatype, list(out.shape)) for out in answer.outputs] == [("y", "FP32", [1, 2])]
            assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [number + 1.0] * 2
        named = infer(5, "both")
        named.outputs.add(name="y")
        answer = await it.call("ModelInfer", named)
        assert (answer.id, np.frombuffer(answer.raw_output_contents[0], "<f4")[0]) == ("", 6.0)
        assert it.worker.driver.counters.direct_calls == {"add": 3, "both": 1}
        assert it.refused == []
        assert len(it.calls.contexts) == (0 if fast else 4), "the fast path needs no handler"

    served(tmp_path, test, fast=fast)


@paths
def test_inputs_may_come_in_any_order(tmp_path: Path, fast: bool) -> None:
    async def test(it: Served) -> None:
        request = pb.ModelInferRequest(model_name="both")
        for name, value in (("z", 5.0), ("x", 7.0)):
            request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
            request.raw_input_contents.append(np.full((1, 2), value, "<f4").tobytes())
        for _ in range(2):
            answer = await it.call("ModelInfer", request)
            assert np.frombuffer(answer.raw_output_contents[0], "<f4")[0] == 8.0

    served(tmp_path, test, fast=fast)


def changed(**content: Any) -> pb.ModelInferRequest:
    """A request with other content of its input."""
    request = infer()
    for name, value in content.items():
        if name == "raw":
            request.raw_input_contents[0] = value
        elif name == "shape":
            request.inputs[0].shape[:] = value
        else:
            setattr(request.inputs[0], name, value)
    return request


def parameter(name: str, field: str, value: Any) -> pb.ModelInferRequest:
    request = infer()
    setattr(request.parameters[name], field, value)
    return request


def output(name: str, *more: str) -> pb.ModelInferRequest:
    request = infer()
    for found in (name, *more):
        request.outputs.add(name=found)
    return request


def classified() -> pb.ModelInferRequest:
    request = infer()
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    return request


def shared(*, typed: bool) -> pb.ModelInferRequest:
    """A request whose input lies in shared memory."""
    request = infer()
    if typed:
        del request.raw_input_contents[:]
        request.inputs[0].contents.fp32_contents.extend([1.0, 1.0])
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    return request


INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFUSED: list[tuple[str, Any, grpc.StatusCode, str]] = [
    ("no model", infer(model="add", model_version="2"), grpc.StatusCode.NOT_FOUND, "served in version only, not '2'"),
    (
        "unknown",
        pb.ModelInferRequest(model_name="x"),
        grpc.StatusCode.NOT_FOUND,
        "no model 'x' here; served: add, both",
    ),
    ("no bytes", b"\xff\xff", INVALID, "the bytes are no ModelInferRequest"),
    ("no input", pb.ModelInferRequest(model_name="add"), INVALID, "x"),
    ("other name", changed(name="w"), INVALID, "w"),
    ("other dtype", changed(datatype="FP64", raw=bytes(16)), INVALID, "input x: "),
    ("other shape", changed(shape=[1, 3], raw=bytes(12)), INVALID, "input x: "),
    ("two rows", changed(shape=[2, 2], raw=bytes(16)), INVALID, "has a leading dimension of 1, got shape [2, 2]"),
    ("short", changed(raw=bytes(4)), INVALID, "input x"),
    ("unknown datatype", changed(datatype="FP8"), INVALID, "datatype 'FP8' is not served"),
    ("shared", shared(typed=False), INVALID, "lies in shared memory, which is not served"),
    ("shared typed", shared(typed=True), INVALID, "lies in shared memory, which is not served"),
    ("no output", output("w"), INVALID, "no output 'w'; add gives y"),
    ("output twice", output("y", "y"), INVALID, "an output is asked for twice: y, y"),
    ("classes", classified(), grpc.StatusCode.UNIMPLEMENTED, "classification is not served"),
    ("timeout text", parameter("timeout", "string_param", "1"), INVALID, "parameter timeout: microseconds"),
    ("timeout negative", parameter("timeout", "int64_param", -1), INVALID, "parameter timeout: microseconds"),
    ("sequence", parameter("sequence_id", "int64_param", 7), grpc.StatusCode.UNIMPLEMENTED, "keeps no state"),
    ("start", parameter("sequence_start", "int64_param", 7), INVALID, "parameter sequence_start: true or false"),
    ("no id", parameter("sequence_start", "bool_param", True), INVALID, "a whole number, or text of 1 to 256 bytes"),
    ("empty id", parameter("sequence_id", "string_param", ""), INVALID, "a whole number, or text of 1 to 256 bytes"),
    ("long id", parameter("sequence_id", "string_param", "x" * 257), INVALID, "text of 1 to 256 bytes"),
]


@paths
@pytest.mark.parametrize(("request_", "status", "reason"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_request_that_does_not_fit_is_refused_and_others_go_on(
    tmp_path: Path, request_: Any, status: grpc.StatusCode, reason: str, fast: bool
) -> None:
    async def test(it: Served) -> None:
        found, text = await it.refusal("ModelInfer", request_)
        assert (found, reason in text) == (status, True), text
        answer = await it.call("ModelInfer", infer(2.0))
        assert np.frombuffer(answer.raw_output_contents[0], "<f4")[0] == 3.0

    served(tmp_path, test, fast=fast)


@pytest.mark.parametrize("id_", ["x" * 256, "y"])
def test_a_sequence_id_of_up_to_256_bytes_is_read(tmp_path: Path, id_: str) -> None:
    async def test(it: Served) -> None:
        status, _ = await it.refusal("ModelInfer", parameter("sequence_id", "string_param", id_))
        assert status is grpc.StatusCode.UNIMPLEMENTED

    served(tmp_path, test)


@paths
def test_the_shortest_of_all_time_limits_holds(tmp_path: Path, fast: bool) -> None:
    async def test(it: Served) -> None:
        limited = parameter("timeout", "int64_param", 500_000)
        for _ in range(2):
            status, reason = await it.refusal("ModelInfer", limited, wait_s=0.51)
            assert (status, reason[:32]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no answer of add within 0.5 s: 0")
            assert it.worker.driver.direct_calls_in_flight == 0
            await asyncio.sleep(1.0)
        for limit in (0, 3_000_000):
            answer = await it.call("ModelInfer", parameter("timeout", "uint64_param", limit))
            assert answer.model_name == "add"
        number = 9001
        call = unary_call(number, limited.SerializeToString(), MODEL_INFER_METHOD, (b"grpc-timeout", b"200m"))
        await it.client.send(call)
        await asyncio.sleep(0.21)
        assert it.client.status(await it.client.frames(), number)[0] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert it.worker.driver.direct_calls_in_flight == 0

    served(tmp_path, test, fast=fast)


@paths
def test_a_request_whose_client_is_gone_is_not_run(tmp_path: Path, fast: bool) -> None:
    async def test(it: Served) -> None:
        for number in (1, 3):
            await it.client.send(unary_call(number, infer(number).SerializeToString(), MODEL_INFER_METHOD))
        assert it.worker.driver.direct_calls_in_flight == 2
        await it.client.send(frame(3, 0, 3, (8).to_bytes(4, "big")))
        assert it.worker.driver.direct_calls_in_flight == 1
        await asyncio.sleep(3.0)
        assert it.worker.sessions["add"].runs == [[1.0]]
        it.client.transport.lose()
        await settle()
        assert it.worker.driver.direct_calls_in_flight == 0

    served(tmp_path, test, fast=fast)


@paths
def test_a_failed_run_and_too_many_requests_have_their_status(tmp_path: Path, fast: bool) -> None:
    async def test(it: Served) -> None:
        it.worker.sessions["add"].fault = InvalidInputError("the model says no")
        status = await it.refusal("ModelInfer", infer(), wait_s=1.1)
        assert status == (INVALID, "operator add: the model says no")
        it.worker.sessions["add"].fault = None
        numbers = range(101, 101 + 2 * 33, 2)
        data = b"".join(unary_call(number, infer().SerializeToString(), MODEL_INFER_METHOD) for number in numbers)
        answers = await it.client.send(data)
        code, text = it.client.status(answers, numbers[-1])
        assert (code, text[:10]) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "overloaded")

    served(tmp_path, test, fast=fast)


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


def test_refused_requests_are_reported_but_not_those_that_fail(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        await it.refusal("ModelInfer", infer(model="add", model_version="2"))
        await it.refusal("ModelInfer", changed(datatype="FP8"))
        assert len(it.refused) == 2
        it.worker.sessions["add"].fault = InvalidInputError("no")
        await it.refusal("ModelInfer", infer(), wait_s=1.1)
        assert len(it.refused) == 2

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


# -- envelopes ---------------------------------------------------------------------------------------------------------


def test_a_request_is_split_into_its_envelope_its_id_and_its_tensors() -> None:
    request = infer(id="me", model="both")
    envelope, id_, tensors = split_request(memoryview(request.SerializeToString())) or (b"", b"", [])
    assert (bytes(id_), [bytes(tensor) for tensor in tensors]) == (b"me", list(request.raw_input_contents))
    other = infer(2.0, id="you", model="both")
    assert (split_request(memoryview(other.SerializeToString())) or (b"",))[0] == envelope
    parsed = pb.ModelInferRequest.FromString(envelope)
    assert (parsed.model_name, parsed.id, len(parsed.raw_input_contents)) == ("both", "", 0)
    large = pb.ModelInferRequest(model_name="add", raw_input_contents=[bytes(70_000)])
    (_, _, (tensor,)) = split_request(memoryview(large.SerializeToString())) or (b"", b"", [b""])
    assert len(tensor) == 70_000


@pytest.mark.parametrize(
    "data",
    [
        pb.ModelInferRequest(model_name="add").SerializeToString(),  # no tensors
        infer().SerializeToString()[:-1],
        infer().SerializeToString() + b"\x3a",
        infer().SerializeToString() + b"\x3a\x80",
        infer().SerializeToString() + b"\x3a\xff\xff\xff\xff\xff\x01",
        infer().SerializeToString() + b"\x08\x01",  # a number
        infer().SerializeToString() + b"\x82\x01\x00",  # a tag of two bytes
    ],
)
def test_requests_that_have_no_envelope(data: bytes) -> None:
    assert split_request(memoryview(data)) is None


def test_envelopes_are_kept_up_to_a_number_and_a_size() -> None:
    envelopes, request = Envelopes(), infer()
    first = envelopes.add(b"0", request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"0") is first
    assert (first.order, first.slots[0].size, first.slots[0].shape) == ((0,), 8, (1, 2))
    envelopes.add(b"x" * 2049, request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"x" * 2049) is None
    envelopes.add(b"x" * 2048, request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"x" * 2048) is not None
    for number in range(1, 255):
        envelopes.add(str(number).encode(), request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"0") is first
    envelopes.add(b"one more", request, "only", ("y",), None, ["x"])
    assert (envelopes.get(b"0"), envelopes.get(b"one more") is None) == (None, False)
    envelopes.clear()
    assert envelopes.get(b"one more") is None


def test_an_envelope_fits_tensors_of_its_sizes_and_ids_of_ascii() -> None:
    known = Envelopes().add(b"", infer(model="both"), "only", ("y",), None, ["x", "z"])
    eight, nine = memoryview(bytes(8)), memoryview(bytes(9))
    assert known.fits(memoryview(b""), [eight, eight])
    assert known.fits(memoryview(b"id"), [eight, eight])
    assert not known.fits(memoryview("ä".encode()), [eight, eight])
    assert not known.fits(memoryview(b""), [eight])
    assert not known.fits(memoryview(b""), [eight, nine])


def test_responses_of_other_shapes_have_other_envelopes() -> None:
    known = Envelopes().add(b"", infer(), "v", ("y",), None, ["x"])
    for shape in ((1, 2), (2, 2), (1, 2)):
        data = np.zeros(shape, "<f4").tobytes()
        answer = pb.ModelInferResponse.FromString(known.response(b"id", [("float32", shape, data)]))
        assert (answer.id, answer.model_version, list(answer.outputs[0].shape)) == ("id", "v", list(shape))
        assert list(answer.raw_output_contents) == [data]
    assert len(known.answers) == 2
    assert pb.ModelInferResponse.FromString(known.response(b"", [("float32", (0, 2), b"")])).id == ""


@pytest.mark.parametrize(
    ("limits", "shortest"), [((), None), ((None, None), None), ((2.0, None), 2.0), ((3.0, 1.0, None), 1.0)]
)
def test_the_shortest_limit(limits: tuple[float | None, ...], shortest: float | None) -> None:
    assert shortest_timeout_s(*limits) == shortest
