"""A made ONNX file with its requests, and what such files are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Requests = Sequence[Mapping[str, Array]]
FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class MadeModel:
    """`requests`: by model input; the answers are those of onnxruntime alone. `refusal`: words of the reason.

    `constants`: what `init` guesses for inputs that are single numbers. `states`: input -> output of a recurrent
    model, whose requests are the chunks of one stream. `is_random`: two runs differ, so only shapes are compared.
    `has_data`: the first request is given to `init`, as the model does not take random numbers.
    """

    what: str
    path: Path
    requests: Requests = ()
    refusal: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    is_random: bool = False
    has_data: bool = False


def port(name: str, shape: Sequence[int | str | None] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 10,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def saved(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def floats(generator: Generator, *shape: int) -> Array:
    return generator.normal(size=shape).astype(np.float32)
