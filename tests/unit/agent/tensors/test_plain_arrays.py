"""Arrays become plain ones in the machine's byte order before code in C reads them."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean_agent import InvalidInputError, decode_tensor, encode_tensor, plain_array
from jellybean_agent.tensors.tensors import dtype_name
from jellybean_protos.agent.v1 import agent_pb2


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i8", ">u2", "|u1", "<i4"])
def test_values_stay_and_the_byte_order_becomes_the_machines(dtype: str) -> None:
    given = np.arange(6).reshape(2, 3).astype(dtype)
    found = plain_array(given)
    assert found.dtype.isnative and found.dtype.name == given.dtype.name
    assert found.tolist() == given.tolist() == decode_tensor(encode_tensor(given)).tolist()


def test_a_byte_order_that_slips_through_is_no_dtype_of_a_model() -> None:
    assert dtype_name(np.zeros(1, ">f4")) == "float32 in foreign byte order"


def test_what_a_mask_hides_is_not_sent() -> None:
    values = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, True])
    for take in (plain_array, encode_tensor):
        with pytest.raises(InvalidInputError, match="2 of 3 values are masked out"):
            take(values)
    assert type(plain_array(np.ma.masked_array([1.0], [False]))) is np.ndarray


def test_bytes_of_bool_are_0_or_1() -> None:
    odd = np.frombuffer(bytes([0, 1, 2, 255]), bool)
    assert plain_array(odd).view(np.uint8).tolist() == [0, 1, 1, 1]
    with pytest.raises(InvalidInputError, match="byte 2 of a bool tensor is 2"):
        decode_tensor(agent_pb2.Tensor(dtype="bool", shape=[4], data=odd.tobytes()))
