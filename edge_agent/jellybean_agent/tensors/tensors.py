"""Tensors between the wire and numpy, checked before a byte is believed.

A tensor on the wire is a dtype name, a shape and C-order little-endian bytes. Nothing is allocated from a shape that
the bytes do not fill.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean_agent.errors import InvalidInputError
from jellybean_protos.agent.v1 import agent_pb2

Array = npt.NDArray[Any]

MAX_TENSOR_BYTES = 64 * 2**20
MAX_TENSOR_RANK = 16
MAX_MESSAGE_BYTES = MAX_TENSOR_BYTES + 2**16  # one tensor and its envelope

WIRE_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}


_NAMES = {dtype: name for name, dtype in WIRE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it came: `data` lies where it was read to. Has the fields of a wire tensor, and copies nothing."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def encode_tensor(array: Array) -> agent_pb2.Tensor:
    """The array as a wire tensor. InvalidInputError for dtypes that the wire does not know."""
    found = tensor_without_data(array)
    found.data = tensor_bytes(array)
    return found


def tensor_without_data(array: Array) -> agent_pb2.Tensor:
    """As `encode`, without the bytes."""
    name = dtype_name(array)
    if name not in WIRE_DTYPES:
        raise InvalidInputError(f"a tensor of {name} cannot be sent; known: {', '.join(WIRE_DTYPES)}")
    if array.nbytes > MAX_TENSOR_BYTES:
        raise InvalidInputError(f"a tensor of {array.nbytes} bytes is above the limit of {MAX_TENSOR_BYTES}")
    return agent_pb2.Tensor(dtype=name, shape=array.shape)


def dtype_name(array: Array) -> str:
    """Of its dtype."""
    return _NAMES.get(array.dtype) or array.dtype.name  # which numpy spells out each time


def tensor_bytes(array: Array) -> bytes:
    """In C order, little endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_tensor(tensor: agent_pb2.Tensor | RawTensor) -> Array:
    """The wire tensor as a read-only array over its bytes. InvalidInputError when its parts do not agree."""
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
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def checked_shape(sizes: Iterable[int]) -> tuple[int, ...]:
    """The sizes as a shape. InvalidInputError when there are too many of them or negative ones."""
    shape = tuple(sizes)
    if len(shape) > MAX_TENSOR_RANK or any(size < 0 for size in shape):
        raise InvalidInputError(
            f"shape {shape[:MAX_TENSOR_RANK]} has negative sizes or more than {MAX_TENSOR_RANK} dimensions"
        )
    return shape


def check_tensor_names(what: str, wanted: Collection[str], given: Collection[str]) -> None:
    """InvalidInputError unless there is one tensor for each source, or input."""
    if set(given) != set(wanted):
        got = ", ".join(name[:60] for name in sorted(given)[:16]) or "none"
        raise InvalidInputError(f"a request takes one tensor per {what} ({', '.join(wanted)}), got {got}")


def tensor_spec(dtype: str, shape: tuple[int, ...]) -> agent_pb2.TensorSpec:
    """What a tensor must look like, for the wire; -1 is any size."""
    return agent_pb2.TensorSpec(dtype=dtype, shape=shape)


def tensor_mismatch(dtype: str, shape: tuple[int, ...], wanted_dtype: str, wanted_shape: tuple[int, ...]) -> str | None:
    """Why a tensor does not fit what is wanted (-1: any size), or None when it does."""
    fits = len(shape) == len(wanted_shape) and all(w in (-1, s) for s, w in zip(shape, wanted_shape, strict=True))
    if dtype == wanted_dtype and fits:
        return None
    wanted = ", ".join("any" if size == -1 else str(size) for size in wanted_shape)
    return f"expected {wanted_dtype} [{wanted}], got {dtype} [{', '.join(map(str, shape))}]"
