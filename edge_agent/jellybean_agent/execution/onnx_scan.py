"""Looks into an ONNX file, without the onnx package, for what this agent does not load.

The plan's sha256 covers the model file only, so a model that points at further files is refused; and so is one with
operators that onnxruntime does not bring itself. This walks protobuf's wire format along the few fields of onnx.proto3
that lead to a TensorProto or a NodeProto; everything else is skipped by its length.
"""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_agent.errors import ModelError

DOMAINS = ("", "ai.onnx.ml", "com.microsoft")  # of operators; besides them the model's own functions
_STANDARD = "ai.onnx"  # another name of the empty one
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
_TEXTS = {"node": {4: "name", 7: "domain"}, "function": {1: "name", 10: "domain"}}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of TensorProto
_FIXED = {1: 8, 5: 4}  # wire type -> bytes


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found. `foreign`: an operator (domain.name) that neither onnxruntime nor the model itself has."""

    has_external_data: bool
    foreign: str


def has_external_data(model: bytes) -> bool:
    """Whether any tensor of the model says that its data lies elsewhere. ModelError when it is no protobuf at all."""
    return look_into(model).has_external_data


def look_into(model: bytes) -> Looked:
    """What of a model is not loaded here. ModelError when it is no protobuf at all."""
    view = memoryview(model)
    waiting = [("model", 0, len(view))]
    external, used, own = False, set[tuple[str, str]](), set[tuple[str, str]]()
    while waiting:
        kind, at, end = waiting.pop()
        texts: dict[str, str] = {}
        while at < end:
            tag, at = _varint(view, at, end)
            field, wire = tag >> 3, tag & 7
            if wire == 0:
                value, at = _varint(view, at, end)
                external |= kind == "tensor" and field == _DATA_LOCATION and value != 0
            elif wire == 2:
                size, at = _varint(view, at, end)
                if at + size > end:
                    raise ModelError("not an ONNX file: a field runs past its end")
                external |= kind == "tensor" and field == _EXTERNAL_DATA
                if field in _TEXTS.get(kind, ()):
                    texts[_TEXTS[kind][field]] = bytes(view[at : at + size]).decode("utf-8", "replace")
                if field in _FIELDS[kind]:
                    waiting.append((_FIELDS[kind][field], at, at + size))
                at += size
            elif wire in _FIXED:
                at += _FIXED[wire]
            else:
                raise ModelError(f"not an ONNX file: wire type {wire}")
        if kind in _TEXTS:
            (used if kind == "node" else own).add((texts.get("domain", ""), texts.get("name", "")))
    foreign = [f"{domain}.{name}"[:120] for domain, name in used - own if domain not in (*DOMAINS, _STANDARD)]
    return Looked(external, min(foreign, default=""))


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
