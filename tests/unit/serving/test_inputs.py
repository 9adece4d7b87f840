"""A source's tensor cut into the messages of an edge, read by protobuf or left where it lay."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.serving.gateway.plans.source_messages import source_messages
from jellybean_agent.tensors.tensors import RawTensor, decode_tensor, encode_tensor, tensor_bytes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["each", "fan_out"])
def test_what_was_left_where_it_lay_is_cut_as_what_was_read(rows: int, kind: str) -> None:
    array = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    raw = RawTensor("float32", array.shape, memoryview(tensor_bytes(array)))
    read, left = source_messages(encode_tensor(array), kind), source_messages(raw, kind)
    assert [path for path, _ in left] == [path for path, _ in read]
    assert [decode_tensor(tensor).tolist() for _, tensor in left] == [
        decode_tensor(tensor).tolist() for _, tensor in read
    ]
    assert len(left) == (rows if kind == "fan_out" else 1)


def test_no_row_is_a_marker() -> None:
    raw = RawTensor("float32", (0, 4), b"")
    (((position,), tensor),) = source_messages(raw, "fan_out")
    assert (position.count, tensor) == (0, None)
