"""Envelopes of requests and responses, which the fast path keeps: how they are split, kept, matched and filled."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean_agent.inference.envelopes import Envelopes, split_request
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.unit.agent.inference.served_operators import infer


def test_a_request_is_split_into_its_envelope_its_id_and_its_tensors() -> None:
    request = infer(id="me", model="both")
    envelope, id_, tensors = split_request(memoryview(request.SerializeToString())) or (b"", b"", [])
    assert (bytes(id_), [bytes(tensor) for tensor in tensors]) == (b"me", list(request.raw_input_contents))
    other = infer(2.0, id="you", model="both")
    assert (split_request(memoryview(other.SerializeToString())) or (b"",))[0] == envelope
    parsed = pb.ModelInferRequest.FromString(envelope)
    assert (parsed.model_name, parsed.id, len(parsed.raw_input_contents)) == ("both", "", 0)
    large = pb.ModelInferRequest(model_name="add", raw_input_contents=[bytes(70_000)])
    (_, _, (tensor,)) = split_request(memoryview(large.SerializeToString())) or (b"", b"", [b""])
    assert len(tensor) == 70_000


@pytest.mark.parametrize(
    "data",
    [
        pb.ModelInferRequest(model_name="add").SerializeToString(),  # no tensors
        infer().SerializeToString()[:-1],
        infer().SerializeToString() + b"\x3a",
        infer().SerializeToString() + b"\x3a\x80",
        infer().SerializeToString() + b"\x3a\xff\xff\xff\xff\xff\x01",
        infer().SerializeToString() + b"\x08\x01",  # a number
        infer().SerializeToString() + b"\x82\x01\x00",  # a tag of two bytes
    ],
)
def test_requests_that_have_no_envelope(data: bytes) -> None:
    assert split_request(memoryview(data)) is None


def test_envelopes_are_kept_up_to_a_number_and_a_size() -> None:
    envelopes, request = Envelopes(), infer()
    first = envelopes.add(b"0", request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"0") is first
    assert (first.order, first.slots[0].size, first.slots[0].shape) == ((0,), 8, (1, 2))
    envelopes.add(b"x" * 2049, request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"x" * 2049) is None
    envelopes.add(b"x" * 2048, request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"x" * 2048) is not None
    for number in range(1, 255):
        envelopes.add(str(number).encode(), request, "only", ("y",), None, ["x"])
    assert envelopes.get(b"0") is first
    envelopes.add(b"one more", request, "only", ("y",), None, ["x"])
    assert (envelopes.get(b"0"), envelopes.get(b"one more") is None) == (None, False)
    envelopes.clear()
    assert envelopes.get(b"one more") is None


def test_an_envelope_fits_tensors_of_its_sizes_and_ids_of_ascii() -> None:
    known = Envelopes().add(b"", infer(model="both"), "only", ("y",), None, ["x", "z"])
    eight, nine = memoryview(bytes(8)), memoryview(bytes(9))
    assert known.fits(memoryview(b""), [eight, eight])
    assert known.fits(memoryview(b"id"), [eight, eight])
    assert not known.fits(memoryview("ä".encode()), [eight, eight])
    assert not known.fits(memoryview(b""), [eight])
    assert not known.fits(memoryview(b""), [eight, nine])


def test_responses_of_other_shapes_have_other_envelopes() -> None:
    known = Envelopes().add(b"", infer(), "v", ("y",), None, ["x"])
    for shape in ((1, 2), (2, 2), (1, 2)):
        data = np.zeros(shape, "<f4").tobytes()
        answer = pb.ModelInferResponse.FromString(known.response(b"id", [("float32", shape, data)]))
        assert (answer.id, answer.model_version, list(answer.outputs[0].shape)) == ("id", "v", list(shape))
        assert list(answer.raw_output_contents) == [data]
    assert len(known.answers) == 2
    assert pb.ModelInferResponse.FromString(known.response(b"", [("float32", (0, 2), b"")])).id == ""


def test_bytes_that_are_no_bool_take_the_path_that_refuses_them() -> None:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(2)])
    request.inputs.add(name="x", datatype="BOOL", shape=[1, 2])
    known = Envelopes().add(b"", request, "only", ("y",), None, ["x"])
    assert known.fits(memoryview(b""), [memoryview(b"\0\1")])
    assert not known.fits(memoryview(b""), [memoryview(b"\0\2")])
