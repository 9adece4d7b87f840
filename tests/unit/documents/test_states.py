"""`state:` in workflow.yaml: what `validate` says of tensors, places in the workflow and streams that do not fit."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from jellybean.documents import build_problem, load_project
from jellybean.errors import DocumentError
from tests.support.streams_project import make_streams_project

STATE = "state: {by: stream, tensors: {state: state_next}}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_streams_project(tmp_path_factory.mktemp("states"))


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "project")


def problems(folder: Path, changes: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with the project after some texts of workflow.yaml were replaced."""
    path = folder / "workflow.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    try:
        build_problem(load_project(folder))
    except DocumentError as error:
        return [f"{problem.path}: {problem.message}; {problem.hint}" for problem in error.problems]
    return []


def save_state_model(
    path: Path, state: list, made: list | None = None, kind: int = TensorProto.FLOAT, rows: int | str = "n"
) -> str:
    """A model file with a state of these shapes; its sha256. It is read, not run."""
    ports = {"x": (TensorProto.FLOAT, [rows, 4]), "state": (TensorProto.FLOAT, state)}
    given = {"y": (TensorProto.FLOAT, [rows, 4]), "state_next": (kind, made or state)}
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Cast", ["state"], ["state_next"], to=kind),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, *port) for name, port in some.items()] for some in (ports, given)
    )
    graph = helper.make_graph(nodes, "model", inputs, outputs)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_the_project_is_sound(folder: Path) -> None:
    assert problems(folder) == []
    problem = build_problem(load_project(folder))
    assert {operator.name: operator.state for operator in problem.operators} == {
        "double": (),
        "remember": (("state", "state_next"),),
    }
    assert problem.sources[0].streams == 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("state: state_next", "stat: state_next", "remember.state.tensors.stat: model long has no input 'stat'"),
        ("state: state_next", "state: state_nxt", "model short has no output 'state_nxt'; did you mean 'state_next'"),
        (STATE, "state: {by: client, tensors: {state: state_next}}", "remember.state.by: "),
        (STATE, "state: {by: stream, tensors: {}}", "remember.state.tensors: "),
        (STATE, "", "1 inputs, but model long takes 2 (x, state)"),
        (", streams: 4", "", "sources.x: remember keeps a state by stream, and no number of streams; write streams: "),
        ("stream_ids: data/heldout.npz#streams", "", "the held-out inputs do not say their streams; write stream_ids"),
        ("npz#streams", "npz#x", "stream_ids: data/heldout.npz#x has 2 dimensions; save one stream id per row"),
        ("periodic,", "periodic, deliver: eventually,", "sources.x.deliver: remember keeps a state by stream"),
        (f"inputs: [double]\n    {STATE}", f"inputs: [{{from: double, ratio: 3}}]\n    {STATE}", "below a fan-out"),
        (STATE, f"{STATE}\n    cuts: 2", "a model with a state is not cut"),
        ("rate: 20/s", "rate: 20000/s", "no worker takes one stream: it sends 5,000 chunks/s"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(folder: Path, old: str, new: str, expected: str) -> None:
    found = "\n".join(problems(folder, {old: new}))
    assert expected in found


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"state": ["n", "m"]}, "has shape [n, n], whose sizes beside the rows are not fixed; export it"),
        ({"state": [2, 4]}, "has 2 rows, a stream's state has 1; export it with a dimension of any size, or of 1"),
        ({"state": [1, 4]}, "takes exactly 1 row, input 'x' a batch; export both with a dynamic leading dimension"),
        ({"state": ["n", 4], "made": ["n", 5]}, "does not fit input 'state': shapes differ"),
        ({"state": ["n", 4], "made": ["n", 4, 1]}, "does not fit input 'state': 3 dimensions given, 2 expected"),
        ({"state": ["n", 4], "kind": TensorProto.INT64}, "does not fit input 'state': int64 given, float32 expected"),
    ],
)
def test_tensors_that_cannot_be_a_state_are_named(folder: Path, model: dict, expected: str) -> None:
    path = folder / "models/long.onnx"
    before = (folder / "workflow.yaml").read_text(encoding="utf-8").partition("long.onnx, sha256: ")[2][:64]
    (found,) = problems(folder, {before: save_state_model(path, **model)})
    assert found.startswith("operators.remember.state.tensors.state: ") and expected in found


def test_a_state_of_one_row_fits_a_model_of_one_row(folder: Path) -> None:
    before = (folder / "workflow.yaml").read_text(encoding="utf-8").partition("long.onnx, sha256: ")[2][:64]
    assert problems(folder, {before: save_state_model(folder / "models/long.onnx", [1, 7], rows=1)}) == []


def test_variants_may_keep_states_of_unlike_shapes(folder: Path) -> None:
    """Their states are never exchanged: another variant begins every stream anew."""
    before = (folder / "workflow.yaml").read_text(encoding="utf-8").partition("long.onnx, sha256: ")[2][:64]
    assert problems(folder, {before: save_state_model(folder / "models/long.onnx", ["n", 9])}) == []


def test_streams_without_a_state_are_refused(folder: Path) -> None:
    found = problems(folder, {STATE: ""})
    assert any(text.startswith("sources.x.streams: no operator keeps a state by stream") for text in found), found
    assert any(text.startswith("stream_ids: no operator keeps a state by stream") for text in found), found


@pytest.mark.parametrize("state", [["n", 2], [2, "n", 8], [2, 1, 8], [1, "n", 8], [3, 4, "n"]])
def test_the_rows_of_a_state_may_be_along_any_axis(folder: Path, state: list) -> None:
    rows = 1 if "n" not in state else "n"
    sha256 = save_state_model(folder / "models" / "long.onnx", state, rows=rows)
    replace_hash(folder, "long", sha256)
    assert problems(folder) == []


def replace_hash(folder: Path, variant: str, sha256: str) -> None:
    path = folder / "workflow.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(rf"(models/{variant}\.onnx, sha256: )\w+", rf"\g<1>{sha256}", text), encoding="utf-8")


def test_only_sources_that_a_state_answers_have_streams(folder: Path) -> None:
    """A source of another rate, which nothing joins, is no part of a stream."""
    other = "sources:\n  door: {tier: edge, rate: 3/s, message: 1 B}\n"
    changes = {
        "sources:\n": other,
        "  remember:\n": "  open: {inputs: [door], variants: [only]}\n  remember:\n",
    }
    (folder / "profiles.yaml").write_text(
        (folder / "profiles.yaml")
        .read_text(encoding="utf-8")
        .replace("operators:\n", "operators:\n  open: {only: {latency: {box: 1 ms}}}\n", 1),
        encoding="utf-8",
    )
    assert problems(folder, changes) == []
    assert [source.streams for source in build_problem(load_project(folder)).sources] == [0, 4]
    same = problems(folder, {"rate: 3/s": "rate: 20/s"})
    assert any("sources.door: remember keeps a state by stream, and no number of streams" in text for text in same), (
        same
    )
