"""What a message takes once parsed: messages of many small parts are found before."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent.inference.envelopes import split_request
from jellybean_agent.rpc import parsed_size
from jellybean_agent.rpc.parsed_size import MAX_OVERHEAD_BYTES, has_large_overhead
from jellybean_agent.transport.message_wire import parse_message, split_message
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.examples import examples

REQUEST = pb.ModelInferRequest.DESCRIPTOR
MIB = 2**20


def packed(number: int, content: bytes) -> bytes:
    """A field of bytes, or of a submessage, or of packed numbers."""
    size, octets = len(content), bytearray()
    while size > 0x7F:
        octets.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2,)) + bytes(octets) + bytes((size,)) + content


INPUTS, RAW, CONTENTS, SHAPE, OUTPUTS = 5, 7, 5, 3, 6
BOMBS = {
    "numbers of one byte": packed(INPUTS, packed(CONTENTS, packed(3, bytes(2 * MIB)))),
    "sizes": packed(INPUTS, packed(SHAPE, bytes(2 * MIB))),
    "no sizes, again and again": packed(INPUTS, packed(SHAPE, b"") * 200_000),
    "sizes one by one": packed(INPUTS, b"\x18\x01" * 200_000),
    "empty inputs": packed(INPUTS, b"") * 200_000,
    "empty outputs": packed(OUTPUTS, b"") * 200_000,
    "empty tensors": packed(RAW, b"") * 200_000,
    "parameters of an input": packed(INPUTS, packed(4, b"") * 200_000),
    "texts": packed(INPUTS, packed(CONTENTS, packed(8, b"") * 200_000)),
    "a group": b"\x9b\x06\x9c\x06" + packed(INPUTS, bytes(2**17)),
    "an unknown field": packed(15, b"") * 200_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_many_small_parts_are_found(name: str) -> None:
    assert has_large_overhead(REQUEST, BOMBS[name])


def test_large_requests_of_the_usual_kind_are_not() -> None:
    raw = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(20 * MIB), bytes(5 * MIB)])
    raw.inputs.add(name="x", datatype="FP32", shape=[1, 3, 224, 224])
    raw.parameters["timeout"].int64_param = 5
    assert not has_large_overhead(REQUEST, raw.SerializeToString())
    typed = pb.ModelInferRequest(model_name="m")
    typed.inputs.add(name="x", datatype="FP32", shape=[2**17]).contents.fp32_contents.extend(
        np.zeros(2**17, np.float32)
    )
    assert not has_large_overhead(REQUEST, typed.SerializeToString())
    picture = pb.ModelInferRequest(model_name="m")
    picture.inputs.add(name="x", datatype="UINT8", shape=[150_528]).contents.uint_contents.extend([7] * 150_528)
    assert not has_large_overhead(REQUEST, picture.SerializeToString())
    own = gateway_pb2.InferRequest()
    own.inputs["x"].CopyFrom(agent_pb2.Tensor(dtype="float32", shape=[5], data=bytes(10 * MIB)))
    assert not has_large_overhead(gateway_pb2.InferRequest.DESCRIPTOR, own.SerializeToString())


def test_other_messages_are_looked_through_too() -> None:
    request = gateway_pb2.InferRequest()
    request.inputs["x"].shape.extend([0] * 2 * MIB)
    assert has_large_overhead(gateway_pb2.InferRequest.DESCRIPTOR, request.SerializeToString())


@given(st.binary(max_size=200), st.integers(0, 2**17))
@settings(max_examples=examples(60))
def test_damaged_bytes_are_left_to_the_parser(data: bytes, more: int) -> None:
    whole = data + bytes(2**16 + more)
    is_large = has_large_overhead(REQUEST, whole)
    try:
        found = pb.ModelInferRequest.FromString(whole)
    except DecodeError:
        return
    assert is_large or found.ByteSize() <= len(whole) + MAX_OVERHEAD_BYTES


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_found_by_its_begin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has up to 64 MiB, which a look at all of its parts would take seconds for."""
    looks = 0

    def counted(data: memoryview, at: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return varint(data, at)

    varint = parsed_size._varint
    monkeypatch.setattr(parsed_size, "_varint", counted)
    assert has_large_overhead(REQUEST, BOMBS[name] * 4)
    assert looks <= 3 * MAX_OVERHEAD_BYTES // 64


def test_requests_and_messages_are_not_split_into_millions_of_parts() -> None:
    """What looks for a request's tensors, or for a message's, gives up at a number of parts that no client sends."""
    name, part = packed(1, b"m"), packed(INPUTS, b"")
    assert split_request(memoryview(name + packed(RAW, bytes(2**20)))) is not None
    for bomb in (part * 2**20, packed(RAW, b"") * 2**20, packed(3, b"") * 2**20):
        assert split_request(memoryview(name + bomb + packed(RAW, b"x"))) is None
    message = agent_pb2.Message(
        request_id="r", upstream="a", downstream="b", tensor=agent_pb2.Tensor(data=bytes(2**20))
    )
    data = message.SerializeToString()
    assert split_message(data)[0].tensor == message.tensor or len(split_message(data)[1]) == 2**20
    with pytest.raises(DecodeError, match="too many small parts"):
        split_message(packed(5, b"") * 2**20 + data)
    with pytest.raises(DecodeError, match="too many small parts"):
        parse_message(packed(5, b"") * 2**20)
