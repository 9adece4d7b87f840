"""Conversion of tensors between the Open Inference Protocol and JellyBean's wire format.

Raw contents have the same bytes in both; typed contents are converted. The protocol's own rules (datatype, form, number
of elements) are checked here; whether a tensor fits the model is checked by the code that runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.tensors.dtypes import TEXT_NOT_SERVED, WIRE_DTYPES
from jellybean_agent.tensors.tensors import MAX_TENSOR_BYTES, Array, check_answer_size, checked_shape
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2

DTYPE_BY_DATATYPE = {  # the protocol's datatype -> numpy dtype
    "BOOL": "bool",
    **{f"{sign}INT{bits}": f"{sign}int{bits}".lower() for sign in ("U", "") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
DATATYPE_BY_DTYPE = {dtype: datatype for datatype, dtype in DTYPE_BY_DATATYPE.items()}
_CONTENTS = {  # datatype -> field of InferTensorContents; FP16 has none
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def inputs_of(request: inference_pb2.ModelInferRequest) -> dict[str, agent_pb2.Tensor]:
    """A request's tensors by name. InvalidInputError names the invalid one."""
    raw, count = request.raw_input_contents, len(request.inputs)
    if raw and len(raw) != count:
        raise InvalidInputError(f"{len(raw)} raw_input_contents for {count} inputs: send one for each, in their order")
    found: dict[str, agent_pb2.Tensor] = {}
    for index, item in enumerate(request.inputs):
        if item.name in found:
            raise InvalidInputError(f"input {item.name[:60]!r} comes twice")
        try:
            found[item.name] = _raw(item, raw[index]) if raw else _typed(item)
        except InvalidInputError as error:
            raise InvalidInputError(f"input {item.name[:60]!r}: {error}") from error
    return found


def outputs_of(
    request: inference_pb2.ModelInferRequest,
    version: str,
    names: Sequence[str],
    tensors: Mapping[str, agent_pb2.Tensor],
) -> inference_pb2.ModelInferResponse:
    """The response with these outputs, in this order, as raw contents. PermanentError if they are too large."""
    check_answer_size(len(tensors[name].data) for name in names)
    response = inference_pb2.ModelInferResponse(model_name=request.model_name, model_version=version, id=request.id)
    for name in names:
        tensor = tensors[name]
        response.outputs.add(name=name, datatype=DATATYPE_BY_DTYPE[tensor.dtype], shape=tensor.shape)
        response.raw_output_contents.append(tensor.data)
    return response


def dtype_of_datatype(datatype: str) -> str:
    """The numpy dtype of a datatype. InvalidInputError for a datatype that is not served."""
    dtype = DTYPE_BY_DATATYPE.get(datatype)
    if datatype == "BYTES":
        raise InvalidInputError(TEXT_NOT_SERVED)
    if dtype is None:
        raise InvalidInputError(f"datatype {datatype[:40]!r} is not served; known: {', '.join(DTYPE_BY_DATATYPE)}")
    return dtype


def tensor_from_values(dtype: str, shape: Sequence[int], values: Array) -> agent_pb2.Tensor:
    """A wire tensor of this dtype and shape. InvalidInputError if the number or range of `values` does not fit."""
    sizes = checked_shape(shape)
    needed = _check_count(dtype, sizes, len(values))
    wanted = WIRE_DTYPES[dtype]
    if wanted.kind in "iu" and needed:
        low, high, limits = int(values.min()), int(values.max()), np.iinfo(wanted)
        if low < limits.min or high > limits.max:
            raise InvalidInputError(f"{low if low < limits.min else high} is no {dtype}")
    try:
        with np.errstate(over="raise"):
            data = values.astype(wanted).tobytes()
    except FloatingPointError as error:
        raise InvalidInputError(f"a value is too large for {dtype}") from error
    return agent_pb2.Tensor(dtype=dtype, shape=sizes, data=data)


def _check_count(dtype: str, sizes: tuple[int, ...], count: int) -> int:
    """The number of elements of a shape. InvalidInputError if it is not `count`, or more than a tensor may have."""
    needed = math.prod(sizes)
    if needed != count:
        raise InvalidInputError(f"shape {list(sizes)} takes {needed} elements, but {count} came")
    if needed * WIRE_DTYPES[dtype].itemsize > MAX_TENSOR_BYTES:
        raise InvalidInputError(f"a tensor of {needed} {dtype} is above the limit of {MAX_TENSOR_BYTES} bytes")
    return needed


def _raw(item: inference_pb2.ModelInferRequest.InferInputTensor, data: bytes) -> agent_pb2.Tensor:
    _refuse_elsewhere(item)
    if item.contents.ByteSize():
        raise InvalidInputError("has contents beside raw_input_contents: send one of them")
    return agent_pb2.Tensor(dtype=dtype_of_datatype(item.datatype), shape=item.shape, data=data)


def _typed(item: inference_pb2.ModelInferRequest.InferInputTensor) -> agent_pb2.Tensor:
    dtype, values, wide = typed_values(item)
    return tensor_from_values(dtype, item.shape, np.fromiter(values, wide, len(values)))


def typed_values(item: inference_pb2.ModelInferRequest.InferInputTensor) -> tuple[str, Sequence[Any], Any]:
    """Dtype, values and numpy type of an input's typed contents. InvalidInputError if they are none, or too many."""
    _refuse_elsewhere(item)
    dtype = dtype_of_datatype(item.datatype)
    field = _CONTENTS.get(item.datatype)
    if field is None:
        raise InvalidInputError(f"{item.datatype} has no typed contents: send raw_input_contents")
    filled = [found.name for found, _ in item.contents.ListFields()]
    if filled and filled != [field]:
        raise InvalidInputError(f"{item.datatype} goes into {field}, not {', '.join(filled)}")
    values = getattr(item.contents, field)
    _check_count(dtype, checked_shape(item.shape), len(values))
    return dtype, values, {"int_contents": np.int32, "uint_contents": np.uint32}.get(field, WIRE_DTYPES[dtype])


def _refuse_elsewhere(item: inference_pb2.ModelInferRequest.InferInputTensor) -> None:
    if "shared_memory_region" in item.parameters:
        raise InvalidInputError("lies in shared memory, which is not served: send it in the request")
