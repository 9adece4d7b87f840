"""A message whose tensor's bytes leave beside it is the message with them in it."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent import EdgeMessage, encode_tensor
from jellybean_agent.transport.message_wire import message_parts, split_message, varint, write_message
from jellybean_protos.agent.v1 import agent_pb2


@settings(max_examples=50)
@given(
    size=st.sampled_from([0, 1, 126, 127, 128, 16_379, 16_384, 2**21]) | st.integers(0, 300),
    path=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
    left_s=st.floats(0.0, 10.0),
)
def test_bytes_beside_a_message_arrive_in_it(size: int, path: list[tuple[int, int]], left_s: float) -> None:
    array = (np.arange(size) % 251).astype(np.uint8)[np.newaxis]
    wire, data = write_message("plan", EdgeMessage("r", 3, "up", "down", tuple(path), array))
    wire.left_s = left_s
    assert not wire.tensor.data
    whole = agent_pb2.Message.FromString(b"".join(message_parts(wire, memoryview(data))))
    wire.tensor.CopyFrom(encode_tensor(array))
    assert whole == wire


def test_a_message_without_a_tensor_has_none_and_its_bytes_may_be_in_it_too() -> None:
    wire, data = write_message("plan", EdgeMessage("r", 0, "up", "down", ((0, 0),)))
    found = agent_pb2.Message.FromString(b"".join(message_parts(wire, data)))
    assert found == wire
    assert not found.HasField("tensor")
    wire.tensor.CopyFrom(encode_tensor(np.ones((1, 3), np.float32)))
    assert agent_pb2.Message.FromString(b"".join(message_parts(wire, b""))) == wire


@pytest.mark.parametrize(
    ("number", "octets"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (2**28, b"\x80" * 4 + b"\1")]
)
def test_lengths_as_protobuf_has_them(number: int, octets: bytes) -> None:
    assert varint(number) == octets


LARGE = 2**16


@settings(max_examples=100)
@given(
    size=st.sampled_from([0, LARGE - 60, LARGE, 3 * LARGE]),
    changed=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=3),
    is_whole=st.booleans(),
)
def test_bytes_taken_apart_are_those_of_the_message(size: int, changed: list[tuple[int, int]], is_whole: bool) -> None:
    """Whatever its first bytes say: the same message, or none at all."""
    array = np.ones((1, size), np.uint8)
    wire, data = write_message("plan", EdgeMessage("r", 3, "up", "down", ((1, 2),), array))
    wire.trace.parent = "p"
    if is_whole:
        wire.tensor.data, data = data, b""
    told = bytearray(b"".join(message_parts(wire, data)))
    for at, octet in changed:
        told[at % len(told)] = octet
    try:
        wanted = agent_pb2.Message.FromString(bytes(told))
    except DecodeError:
        with pytest.raises(DecodeError):
            split_message(bytes(told))
        return
    found, rest = split_message(bytes(told))
    if size >= LARGE and not is_whole and not changed:
        assert len(rest) == size
        assert not found.tensor.data
    if rest:
        found.tensor.data = bytes(rest)
    assert found == wanted
