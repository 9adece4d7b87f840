"""From four ONNX files to a served plan in six commands, with no hash typed; then what happens to that project."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper, save_model

from jellybean.cli import run
from jellybean.documents import load_project
from jellybean.serving import Client
from tests.support.known_hop import keep_hop

PIXELS, FEATURES, CLASSES = 3 * 8 * 8, 24, 4


def save(path: Path, nodes: list[NodeProto], given: tuple[str, list], made: tuple[str, list], **weights) -> None:
    kind = TensorProto.INT64 if nodes[-1].op_type == "ArgMax" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])],
        [helper.make_tensor_value_info(made[0], kind, made[1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def save_models(folder: Path) -> list[Path]:
    """An extractor, a classifier in two sizes, and the label of its scores; of batches of any size."""
    folder.mkdir()
    flat = helper.make_node("Flatten", ["image"], ["pixels"])
    product = helper.make_node("MatMul", ["pixels", "w"], ["features"])
    save(
        folder / "extract.onnx",
        [flat, product],
        ("image", ["n", 3, 8, 8]),
        ("features", ["n", FEATURES]),
        w=weights(PIXELS, FEATURES),
    )
    small = helper.make_node("MatMul", ["input", "w"], ["scores"])
    sizes = ("input", ["n", FEATURES]), ("scores", ["n", CLASSES])
    save(folder / "classify-small.onnx", [small], *sizes, w=weights(FEATURES, CLASSES))
    hidden = [
        helper.make_node("MatMul", ["input", "v"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "w"], ["scores"]),
    ]
    save(folder / "classify-large.onnx", hidden, *sizes, v=weights(FEATURES, 64), w=weights(64, CLASSES))
    best = helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0)
    save(folder / "decide.onnx", [best], ("scores", ["n", CLASSES]), ("label", ["n"]))
    return sorted(folder.glob("*.onnx"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    files = save_models(tmp_path_factory.mktemp("exported") / "nets")
    project = tmp_path_factory.mktemp("projects") / "mine"
    assert run(["init", str(project), "--from", *map(str, files)]) == 0
    assert run(["validate", str(project)]) == 0
    keep_hop(project)  # between agents, which others measure
    assert run(["profile", str(project), "--seconds", "0.05"]) == 0
    assert run(["plan", str(project)]) == 0
    assert run(["up", str(project), "--detach"]) == 0
    yield project
    assert run(["down", str(project)]) == 0


def test_the_sixth_command_is_answered(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["infer", str(served), "--input", f"image={served}/data/heldout.npz#image[0]"]) == 0
    assert "decide" in capsys.readouterr().out
    with np.load(served / "data/heldout.npz") as data, Client.of(served) as client:
        rows = data["image"][:3]
        found = [int(client.infer({"image": row[None]})["decide"][0]) for row in rows]
    features = rows.reshape(3, -1) @ weights(PIXELS, FEATURES)
    small = features @ weights(FEATURES, CLASSES)
    large = np.maximum(features @ weights(FEATURES, 64), 0) @ weights(64, CLASSES)
    assert found in ([int(best) for best in scores.argmax(1)] for scores in (small, large))
    operators = load_project(served).workflow.operators
    assert {name: sorted(spec.variants) for name, spec in operators.items()} == {
        "extract": ["extract"],
        "classify": ["large", "small"],
        "decide": ["decide"],
    }


def test_a_copy_of_it_is_not_up(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(served, served.with_name("copy"))
    for command in ("down", "infer", "top"):
        more = {"infer": ["--input", f"image={copy}/data/heldout.npz#image[0]"], "top": ["--once"]}.get(command, [])
        assert run([command, str(copy), *more]) == 1
        assert "nothing is up for" in " ".join(capsys.readouterr().err.split())
    with Client.of(served) as client:
        assert client.status().state == "ready"


def test_a_changed_model_is_fixed_and_its_profile_is_stale(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = shutil.copytree(served, served.with_name("changed"))
    model = changed / "models/classify-small.onnx"
    sizes = ("input", ["n", FEATURES]), ("scores", ["n", CLASSES])
    product = helper.make_node("MatMul", ["input", "w"], ["scores"])
    save(model, [product], *sizes, w=weights(FEATURES, CLASSES, seed=1))
    assert run(["validate", str(changed)]) == 2
    assert "jellybean validate DIR --fix" in capsys.readouterr().err
    assert run(["validate", str(changed), "--fix"]) == 2
    message = capsys.readouterr().err
    assert "classify.small (models/classify-small.onnx): sha256 " in message
    assert "stale" in message and f"jellybean profile {changed}" in message
    assert run(["validate", str(changed), "--stale"]) == 0
