"""A source's tensor cut into the messages of an edge, read by protobuf or left where it lay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jellybean.serving.gateway.plans.input_advice import what_to_send
from jellybean.serving.gateway.plans.source_messages import check_inputs, source_messages
from jellybean_agent import InvalidInputError, RawTensor, decode_tensor, encode_tensor
from jellybean_agent.tensors.tensors import tensor_bytes


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


@pytest.mark.parametrize(
    ("array", "wanted", "send"),
    [
        (np.ones(30, np.float32), ("float32", (-1, 30)), "; send array[None]"),
        (np.ones(30), ("float32", (-1, 30)), "; send array.astype('float32')[None]"),
        (np.ones((1, 30)), ("float32", (-1, 30)), "; send array.astype('float32')"),
        (np.ones((1, 5, 6), np.float32), ("float32", (1, 30)), "; send array.reshape(1, 30)"),
        (np.ones((1, 12), np.float32), ("float32", (-1, 3, -1)), "; send array.reshape(1, 3, -1)"),
        (np.ones((1, 12), np.float32), ("float32", (-1, -1, -1)), ""),
        (np.ones((1, 12), np.float32), ("float32", (-1, 5, -1)), ""),
        (np.ones((1, 31), np.float32), ("float32", (-1, 30)), ""),
        (np.ones((1, 256, 3), np.float32), ("float32", (-1, 3, 256)), "; send array.transpose(0, 2, 1)"),
        (np.ones((1, 256, 3)), ("float32", (-1, 3, -1)), "; send array.astype('float32').transpose(0, 2, 1)"),
        (np.ones((1, 1, 5, 3), np.float32), ("float32", (-1, 3, 5, 1)), "; send array.transpose(0, 3, 2, 1)"),
        (np.ones((1, 28, 28, 3), np.float32), ("float32", (-1, 3, 28, 28)), ""),  # height and width look alike
        (np.ones((1, 6, 4), np.float32), ("float32", (-1, 3, 8)), ""),
        (np.ones((1, 5, 6), np.float32), ("float32", (1, -1)), ""),
        (np.ones((256, 3), np.float32), ("float32", (-1, 3, 256)), ""),
        (np.ones((1, 28, 28, 1), np.float32), ("float32", (-1, 1, 28, 28)), "; send array.reshape(1, 1, 28, 28)"),
        (np.ones((28, 28), np.float32), ("float32", (-1, 784)), "; send array.reshape(1, 784)"),
    ],
)
def test_what_is_sent_instead_fits(array: Any, wanted: tuple[str, tuple[int, ...]], send: str) -> None:
    dtype, shape = wanted
    found = what_to_send(array.dtype.name, array.shape, dtype, shape)
    assert found == send
    if found:
        made = eval(found.removeprefix("; send "), {"array": array})
        assert made.dtype.name == dtype and len(made) == 1
        assert all(want in (-1, size) for want, size in zip(shape, made.shape, strict=True))


def test_a_wrong_tensor_is_refused_with_the_next_step() -> None:
    view: Any = SimpleNamespace(source_outputs={"strip": [("decide", "each")]})
    signature: Any = SimpleNamespace(inputs={"strip": SimpleNamespace(dtype="float32", shape=(-1, 30))})

    def refusal(name: str, array: Any) -> str:
        with pytest.raises(InvalidInputError) as error:
            check_inputs(view, lambda operator: signature, {name: encode_tensor(array)})
        return str(error.value)

    row = np.ones(30, np.float32)
    assert refusal("strip", row) == (
        "source strip: expected float32 [any, 30], got float32 [30] (for decide); send array[None]"
    )
    assert refusal("strip", np.ones((4, 30), np.float32)).endswith(
        "got shape [4, 30] (for decide); send array[:1], or each row as a request (`infer --rows`)"
    )
    assert refusal("strp", row).endswith("(strip), got strp; did you mean 'strip'?")
    assert "did you mean" not in refusal("other", row)
