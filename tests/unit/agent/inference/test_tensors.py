"""Tensors of the Open Inference Protocol: typed and raw contents say the same, and what disagrees is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jellybean_agent import (
    DTYPE_BY_DATATYPE,
    WIRE_DTYPES,
    Array,
    InvalidInputError,
    PermanentError,
    RequestEnvelope,
    decode_tensor,
    encode_tensor,
)
from jellybean_agent.inference.tensors import DATATYPE_BY_DTYPE, inputs_of, outputs_of
from jellybean_agent.tensors.tensors import MAX_TENSOR_BYTES
from jellybean_protos.inference.v2 import inference_pb2 as pb

FIELDS = {
    "bool": "bool_contents",
    "int8": "int_contents",
    "int16": "int_contents",
    "int32": "int_contents",
    "int64": "int64_contents",
    "uint8": "uint_contents",
    "uint16": "uint_contents",
    "uint32": "uint_contents",
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}
arrays = st.sampled_from(sorted(WIRE_DTYPES)).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)


def typed(array: Array) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    item = request.inputs.add(name="x", datatype=DATATYPE_BY_DTYPE[array.dtype.name], shape=array.shape)
    getattr(item.contents, FIELDS[array.dtype.name]).extend(array.ravel().tolist())
    return request


def test_every_dtype_of_our_wire_has_a_datatype() -> None:
    assert set(DTYPE_BY_DATATYPE.values()) == set(WIRE_DTYPES)
    assert DTYPE_BY_DATATYPE["UINT8"] == "uint8"
    assert DTYPE_BY_DATATYPE["FP32"] == "float32"


@given(arrays)
def test_raw_contents_come_and_go_bit_for_bit(array: Array) -> None:
    request = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[array.tobytes()])
    request.inputs.add(name="x", datatype=DATATYPE_BY_DTYPE[array.dtype.name], shape=array.shape)
    found = inputs_of(pb.ModelInferRequest.FromString(request.SerializeToString()))["x"]
    assert found == encode_tensor(array)
    response = outputs_of(request, "v", ["x"], {"x": found})
    assert (response.model_name, response.model_version, response.id) == ("m", "v", "7")
    assert (response.outputs[0].datatype, tuple(response.outputs[0].shape)) == (
        DATATYPE_BY_DTYPE[array.dtype.name],
        array.shape,
    )
    assert response.raw_output_contents[0] == array.tobytes()


@given(arrays.filter(lambda array: array.dtype.name in FIELDS))
def test_typed_contents_are_what_raw_ones_are(array: Array) -> None:
    found = decode_tensor(inputs_of(typed(array))["x"])
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def one(datatype: str, shape: list[int], **contents: list) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    request.inputs.add(name="x", datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents))
    return request


def with_raw(request: pb.ModelInferRequest, *raw: bytes) -> pb.ModelInferRequest:
    request.raw_input_contents.extend(raw)
    return request


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (one("FP32", [3], fp32_contents=[1.0, 2.0]), "takes 3 elements, but 2 came"),
        (one("FP32", [2]), "takes 2 elements, but 0 came"),
        (one("FP32", [2**62, 2**62], fp32_contents=[1.0]), "elements, but 1 came"),
        (one("FP32", [1] * 17, fp32_contents=[1.0]), "more than 16 dimensions"),
        (one("FP32", [-1], fp32_contents=[1.0]), "negative sizes"),
        (one("INT64", [1], int_contents=[1]), "INT64 goes into int64_contents, not int_contents"),
        (one("INT8", [2], int_contents=[127, 128]), "128 is no int8"),
        (one("UINT8", [1], uint_contents=[2**32 - 1]), "is no uint8"),
        (one("FP16", [1], fp32_contents=[1.0]), "FP16 has no typed contents"),
        (one("BYTES", [1], bytes_contents=[b"text"]), "text (BYTES) is not served: use numbers, such as token ids"),
        (one("BF16", [1]), "datatype 'BF16' is not served"),
        (one("float32", [1]), "datatype 'float32' is not served"),
        (with_raw(one("FP32", [1], fp32_contents=[1.0]), b"1234"), "has contents beside raw_input_contents"),
        (with_raw(one("FP32", [1]), b"1234", b"1234"), "2 raw_input_contents for 1 inputs"),
    ],
)
def test_what_disagrees_is_refused(request_: pb.ModelInferRequest, told: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        inputs_of(request_)
    assert told in str(caught.value)


def test_an_input_that_comes_twice_or_lies_elsewhere_is_refused() -> None:
    request = one("FP32", [1], fp32_contents=[1.0])
    request.inputs.append(request.inputs[0])
    with pytest.raises(InvalidInputError, match="input 'x' comes twice"):
        inputs_of(request)
    del request.inputs[1]
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    with pytest.raises(InvalidInputError, match="shared memory"):
        inputs_of(request)


def test_an_answer_is_no_larger_than_its_client_takes() -> None:
    """Two outputs that each are within the limit; either of them may be asked for."""
    half = encode_tensor(np.zeros(MAX_TENSOR_BYTES // 2 + 1, np.uint8))
    request, outputs = pb.ModelInferRequest(model_name="m"), {"x": half, "y": half}
    with pytest.raises(PermanentError, match=f"{MAX_TENSOR_BYTES + 2} bytes, above the limit"):
        outputs_of(request, "v", ["x", "y"], outputs)
    known = RequestEnvelope("m", "v", None, (), (), ("x", "y"))
    with pytest.raises(PermanentError, match=f"{MAX_TENSOR_BYTES + 2} bytes, above the limit"):
        known.response(b"", [(half.dtype, tuple(half.shape), half.data)] * 2)
    assert len(outputs_of(request, "v", ["y"], outputs).raw_output_contents) == 1
