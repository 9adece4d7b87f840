"""Tensors on the wire: there and back, and lies refused before anything is allocated."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean_agent import (
    WIRE_DTYPES,
    InvalidInputError,
    PermanentError,
    decode_tensor,
    encode_tensor,
    tensor_mismatch,
)
from jellybean_agent.tensors.tensors import MAX_TENSOR_BYTES
from jellybean_protos.agent.v1 import agent_pb2


@pytest.mark.parametrize("dtype", sorted(WIRE_DTYPES))
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 2, 3, 4)])
def test_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = decode_tensor(agent_pb2.Tensor.FromString(encode_tensor(array).SerializeToString()))
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable


def test_order_and_endianness_are_normalised() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    np.testing.assert_array_equal(decode_tensor(encode_tensor(array)), array)
    np.testing.assert_array_equal(decode_tensor(encode_tensor(array.T)), array.T)
    np.testing.assert_array_equal(decode_tensor(encode_tensor(array[:, ::2])), array[:, ::2])


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (agent_pb2.Tensor(dtype="float32", shape=[3], data=b"12345678"), "takes 12 bytes, but 8 came"),
        (agent_pb2.Tensor(dtype="float32", shape=[2**40, 2**40]), "bytes, but 0 came"),
        (agent_pb2.Tensor(dtype="float32", shape=[-1, -1], data=b"1234"), "negative"),
        (agent_pb2.Tensor(dtype="float32", shape=[1] * 17, data=b"1234"), "more than 16"),
        (agent_pb2.Tensor(dtype="object", shape=[1], data=b"12345678"), "unknown dtype"),
        (agent_pb2.Tensor(shape=[1], data=b"1"), "unknown dtype"),
        (agent_pb2.Tensor(dtype="uint8", shape=[MAX_TENSOR_BYTES + 1], data=bytes(MAX_TENSOR_BYTES + 1)), "limit"),
    ],
)
def test_lies_are_refused(tensor: agent_pb2.Tensor, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        decode_tensor(tensor)


def test_what_cannot_be_sent() -> None:
    with pytest.raises(InvalidInputError, match="complex128"):
        encode_tensor(np.ones(3, complex))
    with pytest.raises(PermanentError, match="limit"):
        encode_tensor(np.zeros(MAX_TENSOR_BYTES + 1, np.uint8))


def test_mismatch() -> None:
    assert tensor_mismatch("float32", (1, 7), "float32", (1, -1)) is None
    assert tensor_mismatch("float32", (1, 7), "float32", (1, 8)) == "expected float32 [1, 8], got float32 [1, 7]"
    assert tensor_mismatch("float64", (1,), "float32", (-1,)) == "expected float32 [any], got float64 [1]"
    assert tensor_mismatch("float32", (7,), "float32", (1, 7)) is not None
