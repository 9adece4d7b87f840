"""Typed contents of requests: limited before they are parsed, and read in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np
import pytest

from jellybean_agent import InvalidInputError
from jellybean_agent.inference.tensors import inputs_of
from jellybean_agent.inference.typed_contents import MAX_TYPED_BYTES, check_typed_bytes, make_raw
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.simulated_time import run_in_simulated_time

COUNT = 100_000
KINDS = [
    ("FP32", "fp32_contents", np.float32),
    ("FP64", "fp64_contents", np.float64),
    ("INT64", "int64_contents", np.int64),
    ("UINT8", "uint_contents", np.uint8),
    ("INT16", "int_contents", np.int16),
    ("BOOL", "bool_contents", np.bool_),
]


def typed(datatype: str, field: str, values: Iterable[float], shape: tuple[int, ...]) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    item = request.inputs.add(name="x", datatype=datatype, shape=shape)
    getattr(item.contents, field).extend(values)
    return request


@pytest.mark.parametrize(("datatype", "field", "dtype"), KINDS)
def test_contents_become_the_same_bytes_in_steps(datatype: str, field: str, dtype: type[np.generic]) -> None:
    values = (np.arange(COUNT) % 100).astype(dtype)
    request = typed(datatype, field, values.tolist(), (1, COUNT))
    at_once = inputs_of(request)
    turns = 0

    async def run() -> None:
        nonlocal turns
        reading = asyncio.ensure_future(make_raw(request))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        await reading

    run_in_simulated_time(run)
    assert inputs_of(request) == at_once
    assert request.raw_input_contents[0] == values.tobytes()
    assert turns > COUNT // 2**14, "the event loop goes on meanwhile"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (typed("INT8", "int_contents", [1, 300], (2,)), "input 'x': 300 is no int8"),
        (typed("FP32", "fp32_contents", [1.0], (2,)), "takes 2 elements, but 1 came"),
        (typed("FP32", "fp64_contents", [1.0], (1,)), "FP32 goes into fp32_contents, not fp64_contents"),
    ],
    ids=["range", "number", "field"],
)
def test_what_is_wrong_is_refused_with_its_input(request_: pb.ModelInferRequest, reason: str) -> None:
    async def run() -> None:
        with pytest.raises(InvalidInputError, match=reason):
            await make_raw(request_)

    run_in_simulated_time(run)


def test_too_many_are_refused_before_they_are_parsed() -> None:
    """One byte each on the wire, eight in memory."""
    data = typed("INT64", "int64_contents", [1] * (MAX_TYPED_BYTES + 100), (1,)).SerializeToString()
    with pytest.raises(InvalidInputError, match="send raw_input_contents"):
        check_typed_bytes(data)
    raw = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(2 * MAX_TYPED_BYTES)])
    raw.inputs.add(name="x", datatype="UINT8", shape=[2 * MAX_TYPED_BYTES])
    assert check_typed_bytes(raw.SerializeToString()) < 100


@pytest.mark.parametrize("data", [b"\x2a", b"\x2a\xff\xff\xff\xff\x7f", b"\xff" * 50, b"\x0b\x0c", b"\x28\x80"])
def test_damaged_bytes_are_left_to_the_parser(data: bytes) -> None:
    try:
        assert check_typed_bytes(data) >= 0
    except InvalidInputError as error:
        assert "typed contents" in str(error)
