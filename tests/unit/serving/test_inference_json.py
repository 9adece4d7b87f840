"""HTTP bodies of the inference protocol: they become what gRPC carries, or are refused by the place that is wrong."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jellybean.cli.serving.request_inputs import load_tensor
from jellybean.serving.http.inference_json import SMALL_BYTES, read_request, write_json, write_response
from jellybean_agent import WIRE_DTYPES, Array, InvalidInputError, encode_tensor
from jellybean_agent.inference.tensors import DATATYPE_BY_DTYPE, DTYPE_BY_DATATYPE, inputs_of, outputs_of
from jellybean_protos.inference.v2 import inference_pb2 as pb

finite = st.sampled_from(sorted(WIRE_DTYPES)).flatmap(
    lambda name: hnp.arrays(
        name,
        hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
        elements=hnp.from_dtype(np.dtype(name), allow_nan=False, allow_infinity=False),
    )
)


def body(*tensors: Array, nested: bool = False, binary: bool = False) -> tuple[bytes, int | None]:
    items: list[dict[str, Any]] = []
    for index, array in enumerate(tensors):
        item: dict[str, Any] = {
            "name": str(index),
            "datatype": DATATYPE_BY_DTYPE[array.dtype.name],
            "shape": list(array.shape),
        }
        if binary:
            item["parameters"] = {"binary_data_size": array.nbytes}
        else:
            item["data"] = array.tolist() if nested and array.ndim else array.ravel().tolist()
        items.append(item)
    text = json.dumps({"id": "7", "inputs": items}).encode()
    return text + b"".join(array.tobytes() for array in tensors if binary), len(text) if binary else None


@given(finite.filter(lambda array: array.dtype.name != "float16"), st.booleans())
def test_tensors_in_json_flat_or_nested_are_the_same_bytes(array: Array, nested: bool) -> None:
    text, _ = body(array, nested=nested)
    for size in (len(text), SMALL_BYTES + 1):  # which is read in steps
        request, binary = read_request(text.ljust(size), None)
        assert (request.id, binary) == ("7", False)
        assert inputs_of(request) == {"0": encode_tensor(array)}


@given(finite, finite)
def test_tensors_behind_the_json_are_the_same_bytes(first: Array, second: Array) -> None:
    request, _ = read_request(*body(first, second, binary=True))
    assert inputs_of(request) == {"0": encode_tensor(first), "1": encode_tensor(second)}


@given(finite, finite)
def test_responses_say_the_same_in_json_and_as_bytes(first: Array, second: Array) -> None:
    asked = pb.ModelInferRequest(model_name="m", id="7")
    response = outputs_of(asked, "v", ["a", "b"], {"a": encode_tensor(first), "b": encode_tensor(second)})
    text, json_bytes = write_response(response, frozenset({"b"}))
    assert json_bytes is not None
    head = json.loads(text[:json_bytes])
    assert (head["id"], head["model_name"], head["model_version"]) == ("7", "m", "v")
    in_json, behind = head["outputs"]
    found = np.array(in_json["data"], first.dtype).reshape(in_json["shape"])
    assert (found.shape, found.tobytes()) == (first.shape, first.tobytes())
    assert behind["parameters"] == {"binary_data_size": second.nbytes}
    assert text[json_bytes:] == second.tobytes()
    assert write_response(response, False)[1] is None
    in_steps = json.loads(b"".join(write_json(response, False)))
    for output, sent in zip(in_steps["outputs"], (first, second), strict=True):
        assert np.array(output["data"], sent.dtype).tobytes() == sent.tobytes()
    assert (
        b"".join(write_json(response, True)) == write_response(response, True)[0][: write_response(response, True)[1]]
    )


def test_what_json_cannot_write_is_said() -> None:
    asked = pb.ModelInferRequest(model_name="m")
    response = outputs_of(asked, "v", ["a"], {"a": encode_tensor(np.array([np.nan], np.float32))})
    with pytest.raises(InvalidInputError, match="ask for it with binary_data"):
        write_response(response, False)
    assert write_response(response, True)[0].endswith(np.array([np.nan], np.float32).tobytes())


def test_parameters_and_outputs() -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    outputs = [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}]
    parameters = {"binary_data_output": True, "timeout": 5, "other": "text", "yes": True, "half": 0.5}
    request, binary = read_request(
        json.dumps({"inputs": [item], "outputs": outputs, "parameters": parameters}).encode(), None
    )
    assert binary == {"b"}
    assert [output.name for output in request.outputs] == ["a", "b"]
    assert request.parameters["timeout"].int64_param == 5
    assert request.parameters["half"].double_param == 0.5
    assert read_request(json.dumps({"inputs": [item], "parameters": parameters}).encode(), None)[1] is True


def changed(**more: Any) -> bytes:
    item = {"name": "x", "datatype": "INT8", "shape": [2], "data": [1, 2]} | more
    return json.dumps({"inputs": [{key: value for key, value in item.items() if value is not None}]}).encode()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[" * 100_000, "more than 65536 bytes beside lists of `data`"),
        (b"[]", "not a request"),
        (b"{}", "inputs: a list is meant, it is absent"),
        (b'{"inputs": [1]}', r"inputs\[0\]: an object is meant"),
        (b'{"inputs": [], "outputs": [{}]}', r"outputs\[0\]\.name: text is meant, it is absent"),
        (b'{"inputs": [], "parameters": {"a": [1]}}', "parameters.a: text, a number, true or false"),
        (b'{"inputs": [], "parameters": {"a": 1e400}, "id": 5}', "id: text is meant"),
        (b'{"inputs": [], "parameters": {"binary_data_output": "true"}}', "binary_data_output: true or false is meant"),
        (b'{"inputs": [], "parameters": {"binary_data_output": null}}', "binary_data_output: true or false is meant"),
        (
            b'{"inputs": [], "outputs": [{"name": "a", "parameters": {"binary_data": 1}}]}',
            r"outputs\[0\]\.parameters\.binary_data: true or false is meant",
        ),
        (changed(name=None), r"inputs\[0\]\.name: text is meant, it is absent"),
        (changed(data=None), r"inputs\[0\]\.data: a list is meant, it is absent"),
        (changed(shape=[2.0]), r"inputs\[0\]\.shape: whole numbers"),
        (changed(shape=[True, 2]), r"inputs\[0\]\.shape: whole numbers"),
        (changed(shape=[2**70]), r"inputs\[0\]\.shape: whole numbers"),
        (changed(shape=[-2]), "negative sizes"),
        (changed(shape=[1] * 40), "more than 16 dimensions"),
        (changed(shape=[3]), r"inputs\[0\]\.data has 2 elements, but shape \[3\] takes 3"),
        (changed(shape=[1]), r"inputs\[0\]\.data has 2 elements, but shape \[1\] takes 1"),
        (changed(shape=[2, 1], data=[[1, 2]]), r"data\[0\]: the lists there are neither flat nor those of shape"),
        (changed(data=[[1, 2], [3]]), r"data\[0\] is a list, not int8"),
        (changed(shape=[2, 2], data=[[1, 2, 3], [4]]), r"data\[[01]\]: the lists there are neither flat"),
        (changed(shape=[2, 2], data=[[1, 2], [3, [4]]]), r"data\[3\]: the lists there are neither flat"),
        (changed(shape=[0], data=[1]), "has 1 elements, but shape|neither flat nor"),
        (changed(shape=[2, 0], data=[[], [], []]), "neither flat nor"),
        (changed(data=[1, 128]), "128 is no int8"),
        (changed(data=[1, 2.5]), r"inputs\[0\]\.data\[1\] is a fraction, not int8"),
        (changed(data=[1, True]), r"data\[1\] is true or false, not int8"),
        (changed(datatype="BOOL", data=[True, 1]), r"data\[1\] is a whole number, not bool"),
        (changed(data=[1, float("nan")]), r"data\[1\] is a fraction, not int8"),
        (changed(data=[1, {}]), r"data\[1\] is an object, not "),
        (changed(data=[1, "2"]), r"inputs\[0\]\.data\[1\] is text, but text .BYTES. is not served"),
        (changed(data=[1, None]), r"data\[1\] is null, not int8"),
        (changed(data=[1, 2**80]), r"data\[1\]: 1208925819614629174706176 is no int8"),
        (changed(datatype="FP64", data=[1, 10**400]), r"data\[1\]: 10+ is too large for float64"),
        (changed(datatype="BYTES", data=["a", "b"]), "text .BYTES. is not served: use numbers, such as token ids"),
        (changed(datatype="FP16", data=[70000, 0]), "too large for float16"),
        (changed(datatype="FP32", data=[1e300, 0]), "too large for float32"),
        (changed(parameters={"binary_data_size": 2}), "has data and binary_data_size"),
        (changed(data=None, parameters={"binary_data_size": 2}), "binary_data_size is 2, but 0 bytes are left"),
        (changed(data=None, parameters={"binary_data_size": -1}), "binary_data_size is -1"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(text: bytes, told: str) -> None:
    for size in (len(text), SMALL_BYTES + 1):  # which is read in steps
        with pytest.raises(InvalidInputError, match=told):
            read_request(text.ljust(size), None)


def test_bytes_that_belong_to_nobody() -> None:
    text = changed()
    with pytest.raises(InvalidInputError, match="3 bytes of the body are of no input"):
        read_request(text + b"abc", len(text))
    with pytest.raises(InvalidInputError, match="but the body has"):
        read_request(text, len(text) + 1)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
keys = st.sampled_from(["id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data"])


@given(st.dictionaries(keys, values | st.lists(st.dictionaries(keys, values), max_size=3)))
def test_no_json_ends_in_anything_but_a_refusal(document: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidInputError, UnicodeEncodeError):  # the latter is told by the server
        read_request(json.dumps(document).encode(), None)


def test_half_precision_is_written_and_read_as_numbers() -> None:
    request, _ = read_request(changed(datatype="FP16", data=[0.5, 2]), None)
    assert np.frombuffer(request.raw_input_contents[0], "<f2").tolist() == [0.5, 2.0]


@pytest.mark.parametrize("size", [0, SMALL_BYTES + 1])
@pytest.mark.parametrize("key", ["inputs", "data", "shape"])
def test_a_key_that_comes_twice_is_refused(key: str, size: int) -> None:
    again = f', "{key}": [1]'
    item = '{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]' + again * (key != "inputs") + "}"
    text = '{"inputs": [' + item + "]" + again * (key == "inputs") + "}"
    with pytest.raises(InvalidInputError, match=f"the key '{key}' comes twice"):
        read_request(text.encode().ljust(size), None)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("count", [1, 4, 5000])
def test_a_zero_with_a_sign_keeps_it_though_it_is_written_as_an_integer(datatype: str, count: int) -> None:
    """C's %g and Go write -0 for -0.0, which Python reads as the integer 0."""
    numbers = ", ".join(["-0", *["0"] * (count - 1)])
    rows = f"[{numbers}]" if count == 4 else numbers  # nested
    body = f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": [1, {count}], "data": [{rows}]}}]}}'
    request, _ = read_request(body.encode(), None)
    found = np.frombuffer(request.raw_input_contents[0], WIRE_DTYPES[DTYPE_BY_DATATYPE[datatype]])
    assert np.signbit(found).tolist() == [True, *[False] * (count - 1)]
    assert not found.any()


def test_a_zero_with_a_sign_is_zero_among_integers() -> None:
    for data, values in (("-0", [0]), ("-0, -1", [0, -1]), ("-10, -0", [-10, 0])):
        body = f'{{"inputs": [{{"name": "a-0", "datatype": "INT8", "shape": [{len(values)}], "data": [{data}]}}]}}'
        request, _ = read_request(body.encode(), None)
        assert np.frombuffer(request.raw_input_contents[0], np.int8).tolist() == values
    assert np.signbit(load_tensor("float32:[-0, 0]")).tolist() == [[True, False]]
    assert load_tensor("[-0, 1]").dtype == np.int64
