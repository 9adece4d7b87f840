"""Models and held-out data that documents name: by content, inside the project, fitting along the edges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jellybean.documents import load_heldout, load_project
from jellybean.errors import DocumentError, DocumentProblem

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Port = tuple[str, int, list[Any]]

WORKFLOW = """\
kind: Workflow
name: strips
sources:
  strip: {{tier: edge, rate: 5/s, message: 1 KiB, inputs: data/heldout.npz#strips}}
operators:
  find:
    inputs: [strip]
    variants: {{find: {{model: models/find.onnx, sha256: {find}}}}}
  read:
    inputs: [{{from: find, ratio: 4}}]
    variants:
      small: {{model: models/small.onnx, sha256: {small}}}
      large: {{model: models/large.onnx, sha256: {large}}}
  number:
    inputs: [{{from: read, gather: true}}]
    variants: {{number: {{model: models/number.onnx, sha256: {number}}}}}
labels: data/heldout.npz#labels
metric: exact_match
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, price: 0.1 USD/h}}
"""
MODELS: dict[str, tuple[list[Port], list[Port]]] = {
    "find": ([("strip", FLOAT, [1, 16, 96])], [("crops", FLOAT, ["n", 16, 16]), ("count", INT64, [1])]),
    "small": ([("find", FLOAT, ["batch", 16, 16])], [("scores", FLOAT, ["batch", 10])]),
    "large": ([("x", FLOAT, ["batch", 16, 16])], [("scores", FLOAT, ["batch", 10])]),
    "number": ([("scores", FLOAT, ["n", 10])], [("digits", INT64, ["n"])]),
}


def save(path: Path, inputs: list[Port], outputs: list[Port]) -> str:
    """A model with such inputs and outputs (never run here); returns its SHA-256."""

    def values(ports: list[Port]) -> list[Any]:
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in ports]

    nodes = [helper.make_node("Identity", [inputs[0][0]], [name]) for name, _, _ in outputs]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs))
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph), str(path))
    return hashlib.sha256(path.read_bytes()).hexdigest()


Project = Callable[..., Sequence[DocumentProblem]]


@pytest.fixture
def problems(tmp_path: Path) -> Project:
    """Problems of the project with some models or arrays exchanged, or text of the workflow replaced."""

    def load(
        models: dict[str, tuple[list[Port], list[Port]]] | None = None,
        arrays: dict[str, Any] | None = None,
        replace: tuple[str, str] = ("", ""),
        profiles: str = "",
    ) -> Sequence[DocumentProblem]:
        hashes = {
            name: save(tmp_path / "models" / f"{name}.onnx", *ports)
            for name, ports in {**MODELS, **(models or {})}.items()
        }
        (tmp_path / "data").mkdir(exist_ok=True)
        held = {"strips": np.zeros((7, 16, 96), np.float32), "labels": np.arange(7)}
        np.savez(tmp_path / "data" / "heldout.npz", **{**held, **(arrays or {})})
        (tmp_path / "workflow.yaml").write_text(WORKFLOW.format(**hashes).replace(*replace), encoding="utf-8")
        (tmp_path / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
        (tmp_path / "profiles.yaml").write_text(profiles, encoding="utf-8")
        try:
            load_project(tmp_path, profiles=bool(profiles))
        except DocumentError as error:
            return error.problems
        return ()

    return load


def test_models_and_data_that_fit(problems: Project, tmp_path: Path) -> None:
    assert problems() == ()
    inputs, labels, metric = load_heldout(load_project(tmp_path, profiles=False))
    assert inputs["strip"].shape == (7, 16, 96)
    assert labels.tolist() == list(range(7))
    assert metric == "exact_match"


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "line", "message"),
    [
        ("large", [("x", INT64, ["b", 16, 16])], None, 10, "read large: float32 given, int64 expected"),
        ("large", [("x", FLOAT, ["b", 32, 16])], None, 10, "shapes differ ([n, 16, 16] given, [n, 32, 16] expected)"),
        ("large", [("x", FLOAT, ["b", 256])], None, 10, "3 dimensions given, 2 expected"),
        ("large", [("x", FLOAT, [8, 16, 16])], None, 10, "exactly 8 rows expected, but a request has 1"),
        ("large", [("x", FLOAT, ["b", 16, 16]), ("y", FLOAT, ["b"])], None, 10, "1 inputs, but model large takes 2"),
        ("find", [("strip", FLOAT, [1, 16, 64])], None, 7, "strip (held-out inputs) does not fit input 'strip'"),
        ("find", [("strip", TensorProto.DOUBLE, [1, 16, 96])], None, 7, "float32 given, float64 expected"),
        ("number", [("scores", FLOAT, [4, 10])], None, 15, "exactly 4 rows expected, but a gather gives any number"),
        ("number", [("scores", FLOAT, ["n", 12])], None, 15, "read (small, large) does not fit"),
        ("small", None, [("scores", TensorProto.FLOAT16, ["b", 10])], 15, "read (small) does not fit input 'scores'"),
    ],
)
def test_edges_that_do_not_fit(
    problems: Project, model: str, inputs: list[Port] | None, outputs: list[Port] | None, line: int, message: str
) -> None:
    usual = MODELS[model]
    (problem,) = problems(models={model: (inputs or usual[0], outputs or usual[1])})
    assert message in problem.message
    assert problem.line == line
    assert problem.path.startswith("operators.")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("models/find.onnx", "models/fnd.onnx", 8, "there is no file 'models/fnd.onnx'"),
        ("models/find.onnx", "../find.onnx", 8, "is outside the project folder"),
        ("models/find.onnx", "/etc/passwd", 8, "is not a relative path"),
        ("models/find.onnx", "data/heldout.npz", 8, "SHA-256"),
        ("models/find.onnx", "models", 8, "there is no file 'models'"),
        ("heldout.npz#strips", "held.npz#strips", 4, "there is no file 'data/held.npz'"),
        ("heldout.npz#strips", "heldout.npz#strip", 4, "has no array 'strip'"),
        ("heldout.npz#strips", "../../x.npz#strips", 4, "outside the project folder"),
        ("data/heldout.npz#strips", "models/find.npy", 4, "does not name an array"),
        ("[{from: find, ratio: 4}]", "[{from: find, ratio: 4, output: crop}]", 10, "has no output 'crop'"),
    ],
)
def test_files_that_are_not_there(problems: Project, old: str, new: str, line: int, message: str) -> None:
    (problem,) = problems(replace=(old, new))
    assert message in problem.message
    assert problem.line == line
    assert problem.hint


PROFILES = """\
kind: Profiles
operators:
  find: {find: {message: 1 KiB, latency: {box: 1 ms}}}
  read:
    small: {message: 40 B, latency: {box: {1: 1 ms, 4: 2 ms}}}
    large: {message: 40 B, latency: {box: {1: 1 ms, 4: 2 ms}}}
  number: {number: {latency: {box: 1 ms}}}
"""


def test_batches_of_a_model_that_takes_one_row_are_refused(problems: Project) -> None:
    assert problems(profiles=PROFILES) == ()
    (problem,) = problems({"large": ([("x", FLOAT, [1, 16, 16])], [("scores", FLOAT, [1, 10])])}, profiles=PROFILES)
    assert (problem.line, problem.path) == (6, "operators.read.large.latency.box.4")
    assert problem.message == "a batch of 4, but input 'x' of the model takes exactly 1 row"


def test_another_output_can_be_named(problems: Project) -> None:
    found = problems(replace=("ratio: 4}", "ratio: 4, output: count}"))
    reason = "int64 given, float32 expected; 1 dimension given, 3 expected ([1] given, [n, 16, 16] expected)"
    assert [problem.message.partition(": ")[2] for problem in found] == [reason] * 2
    first = "write {from: find, ratio: 4, output: crops} in place of {from: find, ratio: 4, output: count}, or change"
    assert all(problem.hint.startswith(first) for problem in found)


def test_a_changed_model_is_told_with_both_hashes(problems: Project, tmp_path: Path) -> None:
    digest = save(tmp_path / "models" / "small.onnx", *MODELS["small"])
    (problem,) = problems(replace=(digest, "0a" * 32))
    assert problem.path == "operators.read.variants.small.sha256"
    assert "0a0a0a0a0a0a..." in problem.message
    assert "if this is the right model, write " in problem.hint


def test_a_model_without_hash_is_told_the_hash(problems: Project, tmp_path: Path) -> None:
    digest = save(tmp_path / "models" / "find.onnx", *MODELS["find"])
    (problem,) = problems(replace=(f", sha256: {digest}", ""))
    assert problem.hint == f"write sha256: {digest}, or have `jellybean validate DIR --fix` write it"


def test_links_out_of_the_project_are_refused(problems: Project, tmp_path: Path) -> None:
    assert problems() == ()
    outside = tmp_path.parent / f"{tmp_path.name}-outside.onnx"
    (tmp_path / "models" / "find.onnx").rename(outside)
    (tmp_path / "models" / "find.onnx").symlink_to(outside)
    with pytest.raises(DocumentError) as raised:
        load_project(tmp_path, profiles=False)
    (problem,) = raised.value.problems
    said = f"'models/find.onnx' is outside the project folder: it is a link to {outside.resolve()}"
    assert (problem.message, problem.hint) == (said, "put a copy there in place of the link")
    folder = tmp_path.parent / f"{tmp_path.name}-models"
    (tmp_path / "models").rename(folder)
    (tmp_path / "models").symlink_to(folder)
    with pytest.raises(DocumentError, match=f"'models' is a link to {folder.resolve()}"):
        load_project(tmp_path, profiles=False)


def test_files_that_are_no_models(problems: Project, tmp_path: Path) -> None:
    assert problems() == ()
    path = tmp_path / "models" / "find.onnx"
    whole = path.read_bytes()
    for content in (b"", b"\x00" * 100, whole[: len(whole) // 2], b"PK\x03\x04"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.write_bytes(content)
        workflow = tmp_path / "workflow.yaml"
        workflow.write_text(
            workflow.read_text(encoding="utf-8").replace(digest, hashlib.sha256(content).hexdigest()), encoding="utf-8"
        )
        with pytest.raises(DocumentError) as raised:
            load_project(tmp_path, profiles=False)
        (problem,) = raised.value.problems
        assert "find.onnx is not an ONNX model" in problem.message
        assert problem.line == 8


@pytest.mark.parametrize(
    ("arrays", "line", "message"),
    [
        ({"labels": np.arange(6)}, 17, "labels has 6 rows, data/heldout.npz#strips has 7"),
        ({"labels": np.array(3)}, 17, "is a single value"),
        ({"labels": np.array([{}] * 7, dtype=object)}, 17, "holds Python objects"),
        ({"strips": np.zeros((7, 16, 96), np.uint8)}, 7, "uint8 given, float32 expected"),
        ({"strips": np.zeros((0, 16, 96), np.float32), "labels": np.zeros(0)}, 4, "strips has no rows"),
    ],
)
def test_arrays_that_do_not_fit(problems: Project, arrays: dict[str, Any], line: int, message: str) -> None:
    found = problems(arrays=arrays)
    assert [problem.line for problem in found if message in problem.message] == [line]


def test_held_out_data_that_is_no_archive(problems: Project, tmp_path: Path) -> None:
    assert problems() == ()
    for content in (b"", b"PK\x03\x04 broken", np.zeros(3).tobytes()):
        (tmp_path / "data" / "heldout.npz").write_bytes(content)
        with pytest.raises(DocumentError) as raised:
            load_project(tmp_path, profiles=False)
        assert {problem.line for problem in raised.value.problems} == {4, 17}
        assert all("is not a NumPy archive" in problem.message for problem in raised.value.problems)


def test_a_project_without_held_out_data(problems: Project, tmp_path: Path) -> None:
    assert problems() == ()
    text = (tmp_path / "workflow.yaml").read_text(encoding="utf-8")
    text = text.partition("labels:")[0].replace(", inputs: data/heldout.npz#strips", "")
    (tmp_path / "workflow.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_heldout(load_project(tmp_path, profiles=False))
    assert {problem.path for problem in raised.value.problems} == {"labels", "metric", "sources.strip.inputs"}


@pytest.mark.parametrize(
    ("variant", "line", "message", "hint"),
    [
        ("{python: jellybean_agent.steps:argmax, with: {classes: 10}}", 0, "", ""),
        ("{python: jellybean_agent.steps:argmax}", 0, "", ""),
        ("{python: jellybean_agent.steps:argmax, with: {classes: 12}}", 15, "[n, 10] given, [n, 12] expected", ""),
        ("{python: jellybean_agent.steps:argmax, with: {k: 1}}", 16, "takes no argument 'k'; it takes: classes", ""),
        ("{python: jellybean_agent.steps:top_k}", 16, "needs the argument 'k'", ""),
        ("{python: jellybean_agent.steps:topk}", 16, "has no function topk; its steps: normalise", ""),
        ("{python: jellybean_agent.execution.session:open_in_process}", 16, "is no step: it needs @step", ""),
        ("{python: no_such_steps:one}", 16, "there is no module no_such_steps here: install it", "write its sha256"),
        (f"{{python: no_such_steps:one, sha256: {'a' * 64}}}", 0, "", ""),
        (
            f"{{python: jellybean_agent.steps:argmax, sha256: {'a' * 64}}}",
            16,
            "has SHA-256",
            "if this is the right one",
        ),
        ("{python: jellybean_agent.steps:_along}", 16, "names no function of a module", ""),
        ("{python: os.path.join}", 16, "names no function of a module", ""),
        (
            "{python: a:b, model: models/number.onnx}",
            16,
            "model and python exclude each other",
            "make them two variants",
        ),
        ("{with: {k: 1}}", 16, "`with` needs python", "write python"),
        ("{python: jellybean_agent.steps:argmax, with: {classes: .nan}}", 16, "", ""),
        ("{python: jellybean_agent.steps:argmax, cuts: 3}", 16, "is a Python function, which cannot be cut", "cuts: 0"),
    ],
)
def test_python_functions(problems: Project, tmp_path: Path, variant: str, line: int, message: str, hint: str) -> None:
    number = save(tmp_path / "models" / "number.onnx", *MODELS["number"])
    found = problems(replace=(f"{{model: models/number.onnx, sha256: {number}}}", variant))
    if not line:
        assert found == ()
        return
    (problem,) = found
    assert message in problem.message and hint in (problem.hint or "")
    assert problem.line == line
