"""Requests whose tensors are typed contents: lists of numbers, which take up to eight times their bytes once parsed.

Their size is known before they are parsed. Large ones are read one at a time, in steps between which the
event loop does what else is due: protobuf's containers are read under the interpreter's lock, so a thread
would hold everybody up.
"""

from __future__ import annotations

import asyncio

import numpy as np

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.inference.tensors import tensor_from_values, typed_values
from jellybean_agent.tensors.tensors import Array
from jellybean_protos.inference.v2 import inference_pb2 as pb

MAX_TYPED_BYTES = 2**23
INLINE_BYTES = 2**16  # read at once
_STEP_ELEMENTS = 2**13  # less than half a millisecond
_INPUTS_TAG = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["inputs"].number << 3 | 2


def check_typed_bytes(data: bytes | memoryview) -> int:
    """Bytes of a request's inputs without raw contents, found without parsing. InvalidInputError above the limit."""
    size, at, end = 0, 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        if tag & 7 == 2:
            length, at = _varint(data, at)
            size += length if tag == _INPUTS_TAG else 0
            at += length
        else:
            at = _varint(data, at)[1] if tag & 7 == 0 else at + {1: 8, 5: 4}.get(tag & 7, end)
    if size > MAX_TYPED_BYTES:
        limit = f"above the limit of {MAX_TYPED_BYTES}: send raw_input_contents, which have none of their own"
        raise InvalidInputError(f"{size} bytes of typed contents are {limit}")
    return size


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


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(value of the varint at `at`, offset after it); an offset past the end if it is cut off."""
    number = 0
    for shift, octet in enumerate(data[at : at + 10]):
        number |= (octet & 0x7F) << 7 * shift
        if octet < 0x80:
            return number, at + shift + 1
    return 0, len(data) + 1
