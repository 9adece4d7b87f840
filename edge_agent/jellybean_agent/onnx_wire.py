"""Looks into an ONNX file for tensors that live in other files, without the onnx package.

The plan's sha256 covers the model file only, so a model that points at further files is refused. This walks protobuf's
wire format along the few fields of onnx.proto3 that lead to a TensorProto; everything else is skipped by its length.
"""

from __future__ import annotations

from jellybean_agent.errors import ModelError

# message -> field number -> message that lies in it (onnx.proto3)
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of TensorProto
_FIXED = {1: 8, 5: 4}  # wire type -> bytes


def has_external_data(model: bytes) -> bool:
    """Whether any tensor of the model says that its data lies elsewhere. ModelError when it is no protobuf at all."""
    view = memoryview(model)
    waiting = [("model", 0, len(view))]
    while waiting:
        kind, at, end = waiting.pop()
        while at < end:
            tag, at = _varint(view, at, end)
            field, wire = tag >> 3, tag & 7
            if wire == 0:
                value, at = _varint(view, at, end)
                if kind == "tensor" and field == _DATA_LOCATION and value != 0:
                    return True
            elif wire == 2:
                size, at = _varint(view, at, end)
                if kind == "tensor" and field == _EXTERNAL_DATA:
                    return True
                if at + size > end:
                    raise ModelError("not an ONNX file: a field runs past its end")
                if field in _FIELDS[kind]:
                    waiting.append((_FIELDS[kind][field], at, at + size))
                at += size
            elif wire in _FIXED:
                at += _FIXED[wire]
            else:
                raise ModelError(f"not an ONNX file: wire type {wire}")
    return False


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
    raise ModelError("not an ONNX file: a number has no end")
