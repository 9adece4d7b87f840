"""Models as exporters write them, and a small project of them: built with onnx, node by node as the exporters do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.tiny_models import FLOAT

CLASSES = 3
WORKFLOW = """\
kind: Workflow
name: flowers
sources:
  left: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#left}
  right: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#right}
operators:
  compare:
    inputs: [left, right]
    variants:
      plain: {model: models/plain.onnx, sha256: PLAIN}
      exported:
        model: models/exported.onnx
        sha256: EXPORTED
        inputs: {left: minuend, right: subtrahend}
        outputs: {features: y}
  classify:
    inputs: [{from: compare, output: features}]
    variants:
      torch: {model: models/torch.onnx, sha256: TORCH}
      sklearn: {model: models/sklearn.onnx, sha256: SKLEARN, output: probabilities}
labels: data/heldout.npz#labels
metric: top1
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 2, price: 0.05 USD/h, speed: 0.5}}
"""


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, list],
    outputs: Sequence[onnx.ValueInfoProto],
    **more,
) -> str:
    """Write a model with float inputs; its sha256. `more`: its constants."""
    values = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in more.items()]
    graph = helper.make_graph(list(nodes), path.stem, values, list(outputs), constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensor(name: str, kind: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def sklearn_classifier(path: Path, *, zipmap: bool = False, labels: Sequence[str] = ()) -> str:
    """A logistic regression of four features as skl2onnx writes it: label first, then probabilities; its sha256.

    `zipmap`: probabilities as a list of maps, the exporter's default. `labels`: names of the classes; numbers without.
    """
    names = {"classlabels_strings": list(labels)} if labels else {"classlabels_ints": list(range(CLASSES))}
    weights = np.eye(CLASSES, 4, dtype=np.float32).ravel().tolist()
    kind = TensorProto.STRING if labels else TensorProto.INT64
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["X"],
            ["label", "raw"],
            domain="ai.onnx.ml",
            coefficients=weights,
            intercepts=[0.0] * CLASSES,
            multi_class=1,
            post_transform="SOFTMAX",
            **names,
        ),
        helper.make_node(
            "Normalizer", ["raw"], ["scores" if zipmap else "probabilities"], domain="ai.onnx.ml", norm="L1"
        ),
    ]
    outputs = [tensor("label", kind, ["n"])]
    if not zipmap:
        return write(path, nodes, {"X": ["n", 4]}, [*outputs, tensor("probabilities", FLOAT, ["n", CLASSES])])
    maps = {"classlabels_strings": list(labels)} if labels else {"classlabels_int64s": list(range(CLASSES))}
    nodes.append(helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", **maps))
    value = helper.make_tensor_type_proto(FLOAT, [])
    listed = helper.make_sequence_type_proto(helper.make_map_type_proto(kind, value))
    return write(path, nodes, {"X": ["n", 4]}, [*outputs, helper.make_value_info("probabilities", listed)])


def torch_classifier(path: Path, *, softmax: bool = True) -> str:
    """The same scores as torch's exporter writes them: one output; its sha256."""
    nodes = [helper.make_node("MatMul", ["input", "weight"], ["scores"])]
    nodes += [helper.make_node("Softmax", ["scores"], ["output"], axis=-1)] if softmax else []
    name = "output" if softmax else "scores"
    weight = np.eye(4, CLASSES, dtype=np.float32)
    return write(path, nodes, {"input": ["n", 4]}, [tensor(name, FLOAT, ["n", CLASSES])], weight=weight)


def difference(path: Path, minuend: str, subtrahend: str, output: str) -> str:
    """minuend - subtrahend, with the inputs in the other order; its sha256."""
    inputs = {subtrahend: ["n", 4], minuend: ["n", 4]}
    node = helper.make_node("Sub", [minuend, subtrahend], [output])
    return write(path, [node], inputs, [tensor(output, FLOAT, ["n", 4])])


def make_project(folder: Path) -> Path:
    """The project: `compare` and `classify`, each with two variants that name their tensors differently."""
    models = folder / "models"
    hashes = {
        "PLAIN": difference(models / "plain.onnx", "left", "right", "features"),
        "EXPORTED": difference(models / "exported.onnx", "minuend", "subtrahend", "y"),
        "TORCH": torch_classifier(models / "torch.onnx"),
        "SKLEARN": sklearn_classifier(models / "sklearn.onnx"),
    }
    (folder / "data").mkdir()
    left, right = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)
    labels = (left - right)[:, :CLASSES].argmax(axis=1)
    np.savez(folder / "data/heldout.npz", left=left, right=right, labels=labels)
    text = WORKFLOW
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return folder


def replace(folder: Path, old: str, new: str) -> None:
    """Replace text of workflow.yaml."""
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    assert old in text, old
    (folder / "workflow.yaml").write_text(text.replace(old, new), encoding="utf-8")


def replace_model(folder: Path, name: str, digest: str) -> None:
    """Write the sha256 of a model file that was exchanged."""
    line = next(
        one
        for one in (folder / "workflow.yaml").read_text(encoding="utf-8").splitlines()
        if f"models/{name}.onnx" in one
    )
    old = line.partition("sha256: ")[2][:64]
    replace(folder, old, digest)


def keep_weights_outside(path: Path) -> str:
    """Move a model's weights into NAME.onnx.data, as exporters do with large ones; the sha256 of both together."""
    data = path.with_name(f"{path.name}.data")
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location=data.name, size_threshold=0)
    model, weights = (hashlib.sha256(one.read_bytes()).hexdigest() for one in (path, data))
    return hashlib.sha256(f"{model}\n{weights}  {data.name}\n".encode()).hexdigest()
