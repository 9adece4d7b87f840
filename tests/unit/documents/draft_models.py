"""Small model files for drafts of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import TensorProto, helper, save_model

from jellybean.documents import (
    read_todos,
)
from jellybean.documents.draft.models import group_variants, read_models
from jellybean.documents.draft.wiring import Draft, wire

Shape = Sequence[int | str | None]


def model(path: Path, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], kind: int = TensorProto.FLOAT) -> Path:
    """A model file of these inputs and outputs; its nodes compute nothing that its shapes promise."""
    nodes = [helper.make_node("Identity", [next(iter(inputs))], [name]) for name in outputs]
    ports = [
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in side.items()] for side in (inputs, outputs)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(helper.make_model(helper.make_graph(nodes, "g", *ports), ir_version=9), path)
    return path


def drafted(*files: Path) -> Draft:
    return wire(group_variants(read_models(files)))


def todos_about(project: Path, word: str) -> list[str]:
    return [todo.text for todo in read_todos(project) if word in todo.text]
