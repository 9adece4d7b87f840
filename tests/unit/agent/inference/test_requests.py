"""Requests of the Open Inference Protocol on both paths: answers, refusals, time limits and cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import MODEL_INFER_METHOD, InvalidInputError, shortest_timeout_s
from jellybean_agent.rpc.frames import frame
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.http2_client import settle, unary_call
from tests.unit.agent.inference.served_operators import Served, infer, paths, served


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


def test_refused_requests_are_reported_but_not_those_that_fail(tmp_path: Path) -> None:
    async def test(it: Served) -> None:
        await it.refusal("ModelInfer", infer(model="add", model_version="2"))
        await it.refusal("ModelInfer", changed(datatype="FP8"))
        assert len(it.refused) == 2
        it.worker.sessions["add"].fault = InvalidInputError("no")
        await it.refusal("ModelInfer", infer(), wait_s=1.1)
        assert len(it.refused) == 2

    served(tmp_path, test)


@pytest.mark.parametrize(
    ("limits", "shortest"), [((), None), ((None, None), None), ((2.0, None), 2.0), ((3.0, 1.0, None), 1.0)]
)
def test_the_shortest_limit(limits: tuple[float | None, ...], shortest: float | None) -> None:
    assert shortest_timeout_s(*limits) == shortest
