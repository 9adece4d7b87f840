"""Conversion of tensors between the wire format and numpy, with all checks of incoming data.

A tensor on the wire is a dtype name, a shape, and bytes in C order, little endian. Memory is never allocated for a
shape before its bytes have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean_agent.errors import InvalidInputError, PermanentError
from jellybean_agent.tensors.dtypes import WIRE_DTYPES, unserved_reason
from jellybean_protos.agent.v1 import agent_pb2

Array = npt.NDArray[Any]

MAX_TENSOR_BYTES = 64 * 2**20
MAX_TENSOR_RANK = 16
_MAX_ELEMENTS = 2**48  # numpy refuses shapes above 2**63 bytes, sizes of 0 left out
MAX_MESSAGE_BYTES = MAX_TENSOR_BYTES + 2**16  # one tensor and the other fields of its message
_NAMES = {dtype: name for name, dtype in WIRE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor whose bytes stay in the read buffer. It has the fields of a wire tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def encode_tensor(array: Array) -> agent_pb2.Tensor:
    """An array as a wire tensor. InvalidInputError for dtypes that the wire lacks, PermanentError if too large."""
    plain = plain_array(array)
    found = tensor_without_data(plain)
    found.data = tensor_bytes(plain)
    return found


def plain_array(array: Array) -> Array:
    """The values as an array that code in C reads alike: in the machine's byte order, without a mask.

    Such code takes the bytes of big-endian values for other numbers, and what a mask hides for data.
    InvalidInputError if values are masked out, as a tensor has a value everywhere.
    """
    if type(array) is not np.ndarray:
        masked = np.count_nonzero(np.ma.getmaskarray(array)) if isinstance(array, np.ma.MaskedArray) else 0
        if masked:
            raise InvalidInputError(
                f"{masked} of {array.size} values are masked out: fill them with array.filled(VALUE)"
            )
        array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        truths: Array = array.view(np.uint8) != 0  # numpy takes all bytes but 0 for true; kernels compute with them
        return truths
    return array


def tensor_without_data(array: Array) -> agent_pb2.Tensor:
    """Like `encode_tensor`, but only dtype and shape, without the bytes."""
    name = dtype_name(array)
    if name not in WIRE_DTYPES:
        raise InvalidInputError(f"the tensor {unserved_reason(name)}")
    if array.nbytes > MAX_TENSOR_BYTES:
        raise PermanentError(f"a tensor of {array.nbytes} bytes is above the limit of {MAX_TENSOR_BYTES}")
    return agent_pb2.Tensor(dtype=name, shape=array.shape)


def check_answer_size(sizes: Iterable[int]) -> None:
    """PermanentError if tensors of these sizes (bytes) are too large for one answer, which its client would refuse."""
    total = sum(sizes)
    if total > MAX_TENSOR_BYTES:
        raise PermanentError(
            f"the answer has {total} bytes, above the limit of {MAX_TENSOR_BYTES}: ask for fewer of its outputs, or "
            "for less at a time"
        )


def dtype_name(array: Array) -> str:
    """Name of an array's dtype; in another byte order than the machine's, with that: no model may be given it."""
    name = _NAMES.get(array.dtype)
    if name is not None:
        return name
    # numpy's own `name` is slow, and that of big-endian values is the same as that of others.
    return array.dtype.name if array.dtype.isnative else f"{array.dtype.name} in foreign byte order"


def tensor_bytes(array: Array) -> bytes:
    """An array's bytes in C order, little endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_tensor(tensor: agent_pb2.Tensor | RawTensor) -> Array:
    """A wire tensor as a read-only array over its bytes. InvalidInputError when dtype, shape and bytes disagree."""
    dtype = WIRE_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidInputError(f"unknown dtype {tensor.dtype[:40]!r}; known: {', '.join(WIRE_DTYPES)}")
    shape = checked_shape(tensor.shape)
    data = tensor.data
    if len(data) > MAX_TENSOR_BYTES:
        raise InvalidInputError(f"a tensor of {len(data)} bytes is above the limit of {MAX_TENSOR_BYTES}")
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(data):
        raise InvalidInputError(f"{tensor.dtype} {list(shape)} takes {needed} bytes, but {len(data)} came")
    if (wrong := wrong_bool(dtype, data)) is not None:
        raise InvalidInputError(f"byte {wrong} of a bool tensor is {data[wrong]}: write 0 for false, 1 for true")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def wrong_bool(dtype: np.dtype[Any], data: bytes | memoryview) -> int | None:
    """Index of the first byte of a bool tensor that is neither 0 nor 1; None if there is none, or for other dtypes.

    Models answer such bytes differently: one node tests them, the next one adds them up.
    """
    if dtype != np.bool_ or not len(data) or (codes := np.frombuffer(data, np.uint8)).max() <= 1:
        return None
    return int(np.argmax(codes > 1))


def checked_shape(sizes: Iterable[int]) -> tuple[int, ...]:
    """The sizes as a shape.

    InvalidInputError for negative sizes, too many dimensions, or what no array can have.
    """
    shape = tuple(sizes)
    if len(shape) > MAX_TENSOR_RANK or any(size < 0 for size in shape):
        raise InvalidInputError(
            f"shape {shape[:MAX_TENSOR_RANK]} has negative sizes or more than {MAX_TENSOR_RANK} dimensions"
        )
    if 0 in shape and math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise InvalidInputError(f"shape {shape} has too large sizes beside one of 0")
    return shape


def check_tensor_names(what: str, wanted: Collection[str], given: Collection[str]) -> None:
    """InvalidInputError unless `given` has exactly the `wanted` names. `what`: the word for one in the message."""
    if set(given) != set(wanted):
        got = ", ".join(name[:60] for name in sorted(given)[:16]) or "none"
        raise InvalidInputError(f"a request takes one tensor per {what} ({', '.join(wanted)}), got {got}")


def tensor_spec(dtype: str, shape: tuple[int, ...]) -> agent_pb2.TensorSpec:
    """Dtype and shape of a tensor, for the wire; -1 is any size."""
    return agent_pb2.TensorSpec(dtype=dtype, shape=shape)


def tensor_mismatch(dtype: str, shape: tuple[int, ...], wanted_dtype: str, wanted_shape: tuple[int, ...]) -> str | None:
    """How a tensor differs from the wanted dtype and shape (-1: any size); None when it fits."""
    fits = len(shape) == len(wanted_shape) and all(w in (-1, s) for s, w in zip(shape, wanted_shape, strict=True))
    if dtype == wanted_dtype and fits:
        return None
    wanted = ", ".join("any" if size == -1 else str(size) for size in wanted_shape)
    return f"expected {wanted_dtype} [{wanted}], got {dtype} [{', '.join(map(str, shape))}]"
