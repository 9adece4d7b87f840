"""HTTP bodies of the Open Inference Protocol: JSON, with tensors in it or as bytes after it.

Bodies become the messages that gRPC carries, so both interfaces refuse the same requests. Errors name the JSON field.
What takes time for large tensors is a generator that does a little at a time (`turns`).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import Message

from jellybean.serving.http.number_lists import NumberList, decode_json, find_end, read_list, read_numbers
from jellybean_agent import (
    DTYPE_BY_DATATYPE,
    MAX_TENSOR_RANK,
    WIRE_DTYPES,
    Array,
    InvalidInputError,
    Steps,
    at_once,
    checked_shape,
    dtype_of_datatype,
)
from jellybean_protos.inference.v2 import inference_pb2 as pb

MAX_JSON_BYTES = 16 * 2**20  # limit of the JSON part; larger tensors are sent as bytes after it
SMALL_BYTES = 2**14  # of JSON that is parsed as it is: its Python objects cost little
MAX_FIELD_BYTES = 2**16  # of it that are not in lists of `data`: these become Python objects, 25 times as large
_ELEMENTS = 1024  # of an answer's tensor that one step writes, in about a quarter of a millisecond
_DIGITS = {2: 5, 4: 9}  # bytes of a float -> digits that give it back
_NOT_FINITE = "an output holds NaN or infinity, which JSON cannot write: ask for it with binary_data"
_SECRET = secrets.token_hex(16)  # in the marks of lists that were cut out: no list of a document is taken for one
_INT64 = 2**63
_TYPE_NAMES: dict[type[Any], str] = {str: "text", list: "a list", dict: "an object"}
_SPACE = rb"[ \t\r\n]*+"
_FIELDS = re.compile(  # everything up to a list of `data`; strings are passed over as one
    rb'(?:[^"]++|"(?!data"' + _SPACE + b":" + _SPACE + rb'\[)[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL
)
_DATA = re.compile(b'"data"' + _SPACE + b":" + _SPACE)

Hold = Callable[[int], None]


def read_request(body: bytes, json_bytes: int | None) -> tuple[pb.ModelInferRequest, frozenset[str] | bool]:
    """Parse a body: the request, and the outputs to send as bytes (their names, True: all, False: none).

    `json_bytes`: size of the JSON at the begin of the body (header Inference-Header-Content-Length); None: all of it.
    InvalidInputError names the field that is wrong.
    """
    return at_once(parse_request(body, json_bytes, lambda size: None))


def parse_request(
    body: bytes, json_bytes: int | None, hold: Hold
) -> Steps[tuple[pb.ModelInferRequest, frozenset[str] | bool]]:
    """Like `read_request`, in steps. `hold(size)`: counts the bytes of tensors before they are allocated."""
    if json_bytes is None:
        json_bytes = len(body)
    if not 0 <= json_bytes <= len(body):
        raise InvalidInputError(f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes")
    document, lists = yield from _document(body, json_bytes)
    request = pb.ModelInferRequest(id=_take(document, "id", str, ""))
    parameters = _take(document, "parameters", dict, {})
    all_binary = _flag(parameters, "binary_data_output", False, "parameters")
    _parameters(request.parameters, parameters, "parameters")
    rest = memoryview(body)[json_bytes:]
    for index, item in enumerate(_objects(document, "inputs")):
        used = yield from _read_input(request, item, f"inputs[{index}]", rest, lists, hold)
        rest = rest[used:]
    if len(rest):
        raise InvalidInputError(f"{len(rest)} bytes of the body are of no input: give each its binary_data_size")
    binary = set()
    for index, item in enumerate(_objects(document, "outputs")):
        output = request.outputs.add(name=_take(item, "name", str, where=f"outputs[{index}].name"))
        parameters = _take(item, "parameters", dict, {}, where=f"outputs[{index}].parameters")
        if _flag(parameters, "binary_data", all_binary, f"outputs[{index}].parameters"):
            binary.add(output.name)
        _parameters(output.parameters, parameters, f"outputs[{index}].parameters")
    return request, frozenset(binary) if request.outputs else all_binary


def write_response(response: pb.ModelInferResponse, binary: frozenset[str] | bool) -> tuple[bytes, int | None]:
    """The body of a response, and the size of its JSON part; None when all of it is JSON.

    InvalidInputError when an output has values that JSON cannot represent.
    """
    outputs = [
        fields if array is None else fields | {"data": array.tolist()} for fields, array in _outputs(response, binary)
    ]
    head = {"model_name": response.model_name, "model_version": response.model_version, "outputs": outputs}
    try:
        text = json.dumps(({"id": response.id} if response.id else {}) | head, allow_nan=False).encode()
    except ValueError as error:
        raise InvalidInputError(_NOT_FINITE) from error
    behind = bytes_behind(response, binary)
    return b"".join([text, *behind]), len(text) if behind else None


def write_json(response: pb.ModelInferResponse, binary: frozenset[str] | bool) -> Generator[bytes, None, None]:
    """The JSON of a large response, in pieces. InvalidInputError before the first one that is not empty, as above.

    FP16 and FP32 have the digits that give back the same bits, which takes a quarter of the time of `repr`.
    """
    head = {"model_name": response.model_name, "model_version": response.model_version}
    text = json.dumps(({"id": response.id} if response.id else {}) | head)[:-1] + ', "outputs": ['
    outputs = _outputs(response, binary)
    del response  # which would be kept for as long as the answer is written
    for _, array in outputs:
        if array is not None:
            yield from _check_finite(array)
    for index, (fields, array) in enumerate(outputs):
        text += (", " if index else "") + json.dumps(fields)[:-1]
        if array is not None:
            yield (text + ', "data": [').encode()
            yield from _numbers(array)
            text = "]"
        text += "}"
    yield (text + "]}").encode()


def _outputs(
    response: pb.ModelInferResponse, binary: frozenset[str] | bool
) -> list[tuple[dict[str, Any], Array | None]]:
    """The fields of each output, and its elements if they go into the JSON."""
    found: list[tuple[dict[str, Any], Array | None]] = []
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        fields: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if _is_binary(output.name, binary):
            found.append((fields | {"parameters": {"binary_data_size": len(raw)}}, None))
        else:
            found.append((fields, _array(output, raw)))
    return found


def bytes_behind(response: pb.ModelInferResponse, binary: frozenset[str] | bool) -> list[bytes]:
    """The outputs that follow the JSON."""
    outputs = zip(response.outputs, response.raw_output_contents, strict=True)
    return [raw for output, raw in outputs if _is_binary(output.name, binary)]


def _array(output: pb.ModelInferResponse.InferOutputTensor, raw: bytes) -> Array:
    return np.frombuffer(raw, WIRE_DTYPES[DTYPE_BY_DATATYPE[output.datatype]])


def _is_binary(name: str, binary: frozenset[str] | bool) -> bool:
    return binary if isinstance(binary, bool) else name in binary


def _check_finite(array: Array) -> Generator[bytes, None, None]:
    size = 64 * _ELEMENTS
    for at in range(0, len(array), size):
        if not np.isfinite(array[at : at + size]).all():
            raise InvalidInputError(_NOT_FINITE)
        yield b""


def _numbers(array: Array) -> Generator[bytes, None, None]:
    for at in range(0, len(array), _ELEMENTS):
        text = _number_text(array[at : at + _ELEMENTS])
        yield (f", {text}" if at else text).encode()


def _number_text(array: Array) -> str:
    """The elements as JSON without brackets, so that they are read as the same bits."""
    digits = _DIGITS.get(array.itemsize) if array.dtype.kind == "f" else None
    if digits is None or (np.signbit(array) & (array == 0)).any():  # "-0" would be read as the integer 0
        return json.dumps(array.tolist())[1:-1]
    return _number_format(digits, len(array)) % tuple(array.tolist())


@lru_cache(64)
def _number_format(digits: int, count: int) -> str:
    return ", ".join([f"%.{digits}g"] * count)


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values; 64-bit integers stay numbers, enums become their names."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        # Not by `is_repeated` of the field, which protobuf has from 6.31 on.
        repeated = not isinstance(value, Message | int | float | str | bytes)
        if field.message_type is not None:
            value = [plain(item) for item in value] if repeated else plain(value)
        elif field.enum_type is not None:
            value = field.enum_type.values_by_number[value].name
        elif repeated:
            value = list(value)
        found[field.name] = value
    return found


def _document(body: bytes, json_bytes: int) -> Steps[tuple[dict[str, Any], list[NumberList]]]:
    """The JSON at the begin of a body, whose lists of `data` are left as text."""
    if json_bytes > MAX_JSON_BYTES:
        raise InvalidInputError(json_too_large(json_bytes))
    text = body if json_bytes == len(body) else body[:json_bytes]
    lists, parts, at, size = list[NumberList](), list[bytes](), 0, 0
    if len(text) <= SMALL_BYTES:
        return _loads(text), lists
    while at < len(text):
        fields = _FIELDS.match(text, at, at + MAX_FIELD_BYTES - size + 1)
        key = _DATA.match(text, at if fields is None else fields.end())
        stop = len(text) if key is None else key.end()
        size += stop - at
        if size > MAX_FIELD_BYTES:
            raise InvalidInputError(f"the JSON has more than {MAX_FIELD_BYTES} bytes beside lists of `data`")
        parts.append(text[at:stop])
        at = stop
        if key is not None:
            found = yield from find_end(text, stop, f"inputs[{len(lists)}].data")
            parts.append(f'["{_SECRET}", {len(lists)}]'.encode())
            lists.append(found)
            at = found.end
            yield
    return _loads(b"".join(parts)), lists


def _loads(text: bytes) -> dict[str, Any]:
    try:
        document = decode_json(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise InvalidInputError('not a request: {"inputs": [...]} is meant')
    return document


def json_too_large(size: int) -> str:
    """Why a JSON part of so many bytes is refused."""
    return (
        f"{size} bytes of JSON are above the limit of {MAX_JSON_BYTES}: send tensors as bytes behind it "
        "(binary_data_size, Inference-Header-Content-Length)"
    )


def _read_input(
    request: pb.ModelInferRequest,
    item: dict[str, Any],
    where: str,
    rest: memoryview,
    lists: list[NumberList],
    hold: Hold,
) -> Steps[int]:
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
        values = _take(item, "data", list, where=f"{where}.data")
        dtype = dtype_of_datatype(datatype)
        if values[:1] == [_SECRET]:
            numbers = yield from read_numbers(lists[values[1]], dtype, shape, f"{where}.data", hold)
        else:
            numbers = read_list(values, dtype, shape, f"{where}.data")
        raw = numbers.tobytes()
        yield  # each copy of a large tensor takes milliseconds
        request.raw_input_contents.append(raw)
        yield
        return 0
    if "data" in item:
        raise InvalidInputError(f"{where} has data and binary_data_size: send one of them")
    if type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidInputError(f"{where}: binary_data_size is {str(size)[:40]}, but {len(rest)} bytes are left")
    request.raw_input_contents.append(bytes(rest[:size]))
    yield
    return size


def _take(item: Mapping[str, Any], key: str, kind: type[Any], default: Any = None, where: str | None = None) -> Any:
    """The value of a JSON field. InvalidInputError if it is not of type `kind`, or missing without a default."""
    value = item.get(key, default)
    if not isinstance(value, kind):
        raise InvalidInputError(
            f"{where or key}: {_TYPE_NAMES[kind]} is meant" + ("" if key in item else ", it is absent")
        )
    return dict(value) if kind is dict else value


def _flag(parameters: dict[str, Any], key: str, default: bool, where: str) -> bool:
    """Take a parameter that is true or false. InvalidInputError for another one: it asks for what is not done."""
    value = parameters.pop(key, default)
    if not isinstance(value, bool):
        raise InvalidInputError(f"{where}.{key}: true or false is meant")
    return value


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
