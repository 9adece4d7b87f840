"""Models of the forms in which exporters write them, without the exporters: made with onnx.helper, each a few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jellybean_agent import file_sha256

Shape = Sequence[int | str | None] | None
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SAMPLES_PER_S = 16000


def save_graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    opsets: Mapping[str, int] | None = None,
) -> str:
    """Write a model of these nodes; its sha256. `opsets`: versions of other domains."""
    sides = [
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in side.items()]
        for side in (inputs, outputs)
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", *sides, weights)
    versions = [helper.make_opsetid(name, number) for name, number in {"": opset, **(opsets or {})}.items()]
    model = helper.make_model(graph, opset_imports=versions, ir_version=ir_version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return file_sha256(path)


def save_voice_detector(path: Path, rows: int | str = "N") -> str:
    """A model of the form of Silero VAD: a state with its rows second, and the sampling rate as a single number.

    output = sigmoid(rate / 16000 * mean(input) + mean(state)), stateN = state / 2 + rate / 16000 * mean(input).
    """
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Cast", ["sr"], ["rate"], to=FLOAT),
        helper.make_node("Div", ["rate", "standard"], ["factor"]),
        helper.make_node("Mul", ["mean", "factor"], ["loudness"]),
        helper.make_node("ReduceMean", ["state"], ["memory"], axes=[0, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["memory", "last"], ["column"]),
        helper.make_node("Add", ["loudness", "column"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["output"]),
        helper.make_node("Mul", ["state", "half"], ["kept"]),
        helper.make_node("Add", ["kept", "loudness"], ["stateN"]),
    ]
    return save_graph(
        path,
        nodes,
        {"input": (FLOAT, [rows, "T"]), "state": (FLOAT, [2, rows, 8]), "sr": (INT64, [])},
        {"output": (FLOAT, [rows, 1]), "stateN": (FLOAT, [2, rows, 8])},
        {
            "standard": np.float32(SAMPLES_PER_S),
            "half": np.float32(0.5),
            "last": np.array([1], np.int64),
        },
    )


def voice_by_hand(path: Path, chunks: np.ndarray, rate: int = SAMPLES_PER_S) -> np.ndarray:
    """What onnxruntime answers to the chunks of one stream."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state, answers = np.zeros((2, 1, 8), np.float32), []
    for chunk in chunks:
        feed = {"input": chunk[None], "state": state, "sr": np.array(rate, np.int64)}
        answer, state = session.run(None, feed)
        answers.append(answer)
    return np.stack(answers)
