"""The dtypes of tensors that are served; for all others one sentence that says what to do, which every check uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jellybean_agent.tensors.ports import TensorPort

WIRE_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}

TEXT_NOT_SERVED = "text (BYTES) is not served: use numbers, such as token ids, class indices or UTF-8 bytes as uint8"
_MAX_OUTPUTS = 4  # named in one sentence
_TEXT = ("str", "bytes", "object", "unicode", "tensor(string)")  # beginnings of names that mean text


def is_text(kind: str) -> bool:
    """True for a dtype name, or a type as onnxruntime writes it, that means text."""
    return kind.lower().startswith(_TEXT)


def is_zipmap(kind: str) -> bool:
    """True for the type of a classifier's probabilities as a list of maps, as onnxruntime writes it."""
    return "map(" in kind


def unserved_reason(kind: str) -> str:
    """Why tensors of a kind are not served, as the end of a sentence about one; empty if they are.

    `kind`: a dtype name (float32, str96), or the type of a model's value as onnxruntime writes it.
    """
    if kind in WIRE_DTYPES:
        return ""
    if is_text(kind):
        return f"is text, and {TEXT_NOT_SERVED}"
    if is_zipmap(kind):
        return (
            "is a list of maps (ZipMap), which is not served: export with skl2onnx's options={'zipmap': False}, which "
            "gives a tensor"
        )
    return f"is a {kind[:60]}, which is not served: use a tensor of {', '.join(WIRE_DTYPES)}"


def no_served_output(outputs: Sequence[tuple[str, str]]) -> str:
    """Why none of a model's outputs (name, type) is served: the reason of each, as any of them may be the remedy."""
    reasons = (f"output {name} {unserved_reason(kind)}" for name, kind in outputs[:_MAX_OUTPUTS])
    return "; ".join(reasons)


def is_served(port: TensorPort) -> bool:
    """True for a tensor of numbers. A model's other outputs are not computed; its port has onnxruntime's type."""
    return port.dtype in WIRE_DTYPES
