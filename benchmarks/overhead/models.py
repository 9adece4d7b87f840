"""The two models of the comparison: a tiny MLP with an input of 10 KB, and a model with an input of 600 KB."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from jellybean_agent import Array


@dataclass(frozen=True, slots=True)
class Case:
    """A model, an input and the expected output."""

    label: str
    model: Path
    input: Array
    output: Array


def cases(folder: Path) -> tuple[Case, ...]:
    """Both cases; the models are written into the folder."""
    return (
        _case(folder / "small.onnx", "10 KB", (1, 2560), _mlp((2560, 32, 10))),
        _case(folder / "large.onnx", "600 KB", (1, 3, 224, 224), _pooled()),
    )


def raw_s(case: Case, runs: int = 2000) -> float:
    """Median seconds of onnxruntime alone, in this process, on one thread: the lower bound of every server."""
    session = _session(case.model)
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        session.run(None, {"x": case.input})
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _case(path: Path, label: str, shape: tuple[int, ...], layers: tuple[list, list, int]) -> Case:  # type: ignore[type-arg]
    nodes, weights, outputs = layers
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape[1:]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])
    graph = helper.make_graph(nodes, "model", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    given = np.random.default_rng(7).random(shape, np.float32)
    return Case(label, path, given, _session(path).run(None, {"x": given})[0])


def _mlp(sizes: tuple[int, ...]) -> tuple[list, list, int]:  # type: ignore[type-arg]
    draw = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32) * 0.02, f"w{index}")
        for index, shape in enumerate(itertools.pairwise(sizes))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    return nodes, weights, sizes[-1]


def _pooled() -> tuple[list, list, int]:  # type: ignore[type-arg]
    weights = [numpy_helper.from_array(np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32), "w")]
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    return nodes, weights, 10


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
