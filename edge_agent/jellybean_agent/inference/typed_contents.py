"""Requests whose tensors are typed contents: lists of numbers.

Large ones are read one at a time, in steps between which the event loop does what else is due:
protobuf's containers are read under the interpreter's lock, so a thread would hold everybody up.
"""

from __future__ import annotations

import asyncio

import numpy as np

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.inference.tensors import tensor_from_values, typed_values
from jellybean_agent.rpc.parsed_size import SMALL_BYTES
from jellybean_agent.tensors.tensors import Array
from jellybean_protos.inference.v2 import inference_pb2 as pb

_STEP_ELEMENTS = 2**13  # less than half a millisecond


def has_large_contents(request: pb.ModelInferRequest) -> bool:
    """True if its typed contents take steps to read."""
    return not request.raw_input_contents and sum(item.contents.ByteSize() for item in request.inputs) > SMALL_BYTES


async def make_raw(request: pb.ModelInferRequest) -> None:
    """Turn typed contents into raw ones, in steps. InvalidInputError names the input that is wrong."""
    if request.raw_input_contents:
        return  # beside which there may be none: that is refused later
    for item in request.inputs:
        try:
            dtype, values, wide = typed_values(item)
            numbers: Array = np.empty(len(values), wide)
            for at in range(0, len(values), _STEP_ELEMENTS):
                numbers[at : at + _STEP_ELEMENTS] = values[at : at + _STEP_ELEMENTS]
                await asyncio.sleep(0)
            data = tensor_from_values(dtype, item.shape, numbers).data
        except InvalidInputError as error:
            raise InvalidInputError(f"input {item.name[:60]!r}: {error}") from error
        item.ClearField("contents")
        request.raw_input_contents.append(data)
