"""HTTP bodies of the Open Inference Protocol: JSON, with tensors in it or as bytes after it.

Bodies become the messages that gRPC carries, so both interfaces refuse the same requests. Errors name the JSON field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from jellybean_agent import (
    DTYPE_BY_DATATYPE,
    MAX_TENSOR_RANK,
    WIRE_DTYPES,
    InvalidInputError,
    checked_shape,
    dtype_of_datatype,
    tensor_from_values,
)
from jellybean_protos.inference.v2 import inference_pb2 as pb

MAX_JSON_BYTES = 16 * 2**20  # limit of the JSON part; larger tensors are sent as bytes after it
_INT64 = 2**63
_TYPE_NAMES: dict[type[Any], str] = {str: "text", list: "a list", dict: "an object"}
_JSON_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # numpy kind of a dtype -> kinds of JSON values accepted


def read_request(body: bytes, json_bytes: int | None) -> tuple[pb.ModelInferRequest, frozenset[str] | bool]:
    """Parse a body: the request, and the outputs to send as bytes (their names, True: all, False: none).

    `json_bytes`: size of the JSON at the begin of the body (header Inference-Header-Content-Length); None: all of it.
    InvalidInputError names the field that is wrong.
    """
    if json_bytes is None:
        json_bytes = len(body)
    if not 0 <= json_bytes <= len(body):
        raise InvalidInputError(f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes")
    document = _document(body[:json_bytes])
    request = pb.ModelInferRequest(id=_take(document, "id", str, ""))
    parameters = _take(document, "parameters", dict, {})
    all_binary = parameters.pop("binary_data_output", False) is True
    _parameters(request.parameters, parameters, "parameters")
    rest = memoryview(body)[json_bytes:]
    for index, item in enumerate(_objects(document, "inputs")):
        rest = rest[_read_input(request, item, f"inputs[{index}]", rest) :]
    if len(rest):
        raise InvalidInputError(f"{len(rest)} bytes of the body are of no input: give each its binary_data_size")
    binary = set()
    for index, item in enumerate(_objects(document, "outputs")):
        output = request.outputs.add(name=_take(item, "name", str, where=f"outputs[{index}].name"))
        parameters = _take(item, "parameters", dict, {}, where=f"outputs[{index}].parameters")
        if parameters.pop("binary_data", all_binary) is True:
            binary.add(output.name)
        _parameters(output.parameters, parameters, f"outputs[{index}].parameters")
    return request, frozenset(binary) if request.outputs else all_binary


def write_response(response: pb.ModelInferResponse, binary: frozenset[str] | bool) -> tuple[bytes, int | None]:
    """The body of a response, and the size of its JSON part; None when all of it is JSON.

    InvalidInputError when an output has values that JSON cannot represent.
    """
    outputs, behind = [], []
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        found: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if binary is True or (binary is not False and output.name in binary):
            found["parameters"] = {"binary_data_size": len(raw)}
            behind.append(raw)
        else:
            found["data"] = np.frombuffer(raw, WIRE_DTYPES[DTYPE_BY_DATATYPE[output.datatype]]).tolist()
        outputs.append(found)
    head = {"model_name": response.model_name, "model_version": response.model_version, "outputs": outputs}
    try:
        text = json.dumps(({"id": response.id} if response.id else {}) | head, allow_nan=False).encode()
    except ValueError as error:
        reason = "an output holds NaN or infinity, which JSON cannot write: ask for it with binary_data"
        raise InvalidInputError(reason) from error
    return b"".join([text, *behind]), len(text) if behind else None


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values; 64-bit integers stay numbers, enums become their names."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        repeated = field.is_repeated
        if field.message_type is not None:
            value = [plain(item) for item in value] if repeated else plain(value)
        elif field.enum_type is not None:
            value = field.enum_type.values_by_number[value].name
        elif repeated:
            value = list(value)
        found[field.name] = value
    return found


def _document(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_JSON_BYTES:
        raise InvalidInputError(
            f"{len(text)} bytes of JSON are above the limit of {MAX_JSON_BYTES}: send tensors as bytes behind it "
            "(binary_data_size, Inference-Header-Content-Length)"
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise InvalidInputError('not a request: {"inputs": [...]} is meant')
    return document


def _read_input(request: pb.ModelInferRequest, item: dict[str, Any], where: str, rest: memoryview) -> int:
    """Add one input tensor to the request; returns how many of the bytes after the JSON belong to it."""
    name = _take(item, "name", str, where=f"{where}.name")
    datatype = _take(item, "datatype", str, where=f"{where}.datatype")
    sizes = _take(item, "shape", list, where=f"{where}.shape")
    if not all(type(size) is int and abs(size) < _INT64 for size in sizes):
        raise InvalidInputError(f"{where}.shape: whole numbers are meant")
    shape = checked_shape(sizes[: MAX_TENSOR_RANK + 1])
    added = request.inputs.add(name=name, datatype=datatype, shape=shape)
    parameters = _take(item, "parameters", dict, {}, where=f"{where}.parameters")
    size = parameters.pop("binary_data_size", None)
    _parameters(added.parameters, parameters, f"{where}.parameters")
    if size is None:
        request.raw_input_contents.append(_data(item, datatype, shape, where))
        return 0
    if "data" in item:
        raise InvalidInputError(f"{where} has data and binary_data_size: send one of them")
    if type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidInputError(f"{where}: binary_data_size is {str(size)[:40]}, but {len(rest)} bytes are left")
    request.raw_input_contents.append(bytes(rest[:size]))
    return size


def _data(item: dict[str, Any], datatype: str, shape: tuple[int, ...], where: str) -> bytes:
    """The bytes of a tensor given as JSON lists, flat or nested by its shape."""
    values = _take(item, "data", list, where=f"{where}.data")
    dtype = dtype_of_datatype(datatype)
    try:
        array = np.array(values)
    except (ValueError, RecursionError, OverflowError) as error:
        raise InvalidInputError(f"{where}.data: its lists are not of one length") from error
    if array.size and array.dtype.kind not in _JSON_KINDS[WIRE_DTYPES[dtype].kind]:
        raise InvalidInputError(f"{where}.data: not all of it is {datatype}")
    if array.shape not in {shape, (math.prod(shape),)}:
        raise InvalidInputError(f"{where}.data has shape {list(array.shape)}, neither flat nor {list(shape)}")
    flat = array.ravel() if array.size else np.zeros(0, WIRE_DTYPES[dtype])
    return tensor_from_values(dtype, shape, flat).data


def _take(item: Mapping[str, Any], key: str, kind: type[Any], default: Any = None, where: str | None = None) -> Any:
    """The value of a JSON field. InvalidInputError if it is not of type `kind`, or missing without a default."""
    value = item.get(key, default)
    if not isinstance(value, kind):
        raise InvalidInputError(
            f"{where or key}: {_TYPE_NAMES[kind]} is meant" + ("" if key in item else ", it is absent")
        )
    return dict(value) if kind is dict else value


def _objects(document: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    items: list[Any] = _take(document, key, list, [] if key == "outputs" else None)
    wrong = next((index for index, item in enumerate(items) if not isinstance(item, dict)), None)
    if wrong is not None:
        raise InvalidInputError(f"{key}[{wrong}]: an object is meant")
    return items


def _parameters(found: Any, given: Mapping[str, Any], where: str) -> None:
    """Add parameters to a message, each in the field of its JSON type."""
    for key, value in given.items():
        if isinstance(value, bool):
            found[key].bool_param = value
        elif isinstance(value, int) and abs(value) < _INT64:
            found[key].int64_param = value
        elif isinstance(value, float):
            found[key].double_param = value
        elif isinstance(value, str):
            found[key].string_param = value
        else:
            raise InvalidInputError(f"{where}.{key[:60]}: text, a number, true or false is meant")
