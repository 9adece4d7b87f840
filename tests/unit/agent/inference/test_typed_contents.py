"""Typed contents of requests: limited before they are parsed, and read in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np
import pytest

from jellybean_agent import InvalidInputError
from jellybean_agent.inference.tensors import inputs_of
from jellybean_agent.inference.typed_contents import make_raw
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
