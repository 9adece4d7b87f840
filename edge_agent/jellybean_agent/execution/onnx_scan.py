"""Scans an ONNX file, without the onnx package, for its data files and for operators that the agent does not run.

Only operators that are built into onnxruntime run. The scan parses the protobuf wire format along the few fields of
onnx.proto3 that lead to a TensorProto or a NodeProto, and skips all other fields by their length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jellybean_agent.errors import ModelError

OPERATOR_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")  # allowed domains, besides functions defined in the model
_DEFAULT_DOMAIN = "ai.onnx"  # another name of the empty domain
# message -> field number -> message type of that field (onnx.proto3)
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
_TEXT_FIELDS = {
    "node": {4: "name", 7: "domain"},
    "function": {1: "name", 10: "domain"},
    "entry": {1: "key", 2: "value"},
}
_DATA_LOCATION = 14  # field number of TensorProto; not 0: its data is in another file
_FIXED_BYTES = {1: 8, 5: 4}  # protobuf wire type -> size in bytes


@dataclass(frozen=True, slots=True)
class ModelScan:
    """Result of a scan.

    `data_files`: names of the files that tensors are kept in, sorted; "" for one that is not named. `unknown_operator`:
    domain.name of an operator that neither onnxruntime nor the model has. `data_bytes`: data file -> the end of the
    last tensor in it, of those whose length is stated.
    """

    data_files: tuple[str, ...]
    unknown_operator: str
    data_bytes: Mapping[str, int] = field(default_factory=dict)


def scan_model(model: bytes) -> ModelScan:
    """Scan the content of a model file. ModelError if it is not a protobuf message."""
    view = memoryview(model)
    unread = [("model", 0, len(view), 0)]  # message type, begin, end, begin of the message that contains it
    files: list[str] = []
    entries: list[tuple[int, str, str]] = []  # begin of a tensor, key and value of its external data
    used, defined = set[tuple[str, str]](), set[tuple[str, str]]()
    external = 0  # tensors that are kept in another file
    while unread:
        kind, at, end, parent = unread.pop()
        begin = at
        texts: dict[str, str] = {}
        while at < end:
            tag, at = _varint(view, at, end)
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                value, at = _varint(view, at, end)
                external += kind == "tensor" and number == _DATA_LOCATION and value != 0
            elif wire == 2:
                size, at = _varint(view, at, end)
                if at + size > end:
                    raise ModelError("not an ONNX file: a field runs past its end")
                if number in _TEXT_FIELDS.get(kind, ()):
                    texts[_TEXT_FIELDS[kind][number]] = bytes(view[at : at + size]).decode("utf-8", "replace")
                if number in _FIELDS[kind]:
                    unread.append((_FIELDS[kind][number], at, at + size, begin))
                at += size
            elif wire in _FIXED_BYTES:
                at += _FIXED_BYTES[wire]
            else:
                raise ModelError(f"not an ONNX file: wire type {wire}")
        if kind in ("node", "function"):
            (used if kind == "node" else defined).add((texts.get("domain", ""), texts.get("name", "")))
        entries += [(parent, texts.get("key", ""), texts.get("value", ""))] if kind == "entry" else []
        files += [texts.get("value", "")] if texts.get("key") == "location" else []
    data_files = tuple(sorted({*files, *([""] if external > len(files) else [])}))
    return ModelScan(data_files, _unknown_operator(used - defined), _data_bytes(entries))


def _unknown_operator(operators: Iterable[tuple[str, str]]) -> str:
    """The first operator, of (domain, name), that onnxruntime does not have; empty if it has all."""
    known = (*OPERATOR_DOMAINS, _DEFAULT_DOMAIN)
    return min((f"{domain}.{name}"[:120] for domain, name in operators if domain not in known), default="")


def _data_bytes(entries: Iterable[tuple[int, str, str]]) -> Mapping[str, int]:
    """Data file -> the end of the last tensor in it, of those that state their length."""
    tensors: dict[int, dict[str, str]] = {}
    for begin, key, value in entries:
        tensors.setdefault(begin, {})[key] = value
    ends: dict[str, int] = {}
    for tensor in tensors.values():
        offset, length = (tensor.get(key, default) for key, default in (("offset", "0"), ("length", "")))
        if all(re.fullmatch("[0-9]{1,18}", text) for text in (offset, length)):
            name = tensor.get("location", "")
            ends[name] = max(ends.get(name, 0), int(offset) + int(length))
    return ends


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """(value of the protobuf varint at offset `at`, offset after it)."""
    value = shift = 0
    while at < end and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
    raise ModelError("not an ONNX file: a number has no end")
