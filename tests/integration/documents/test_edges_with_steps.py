"""Edges that do not fit: messages offer an output or steps that work, and shapes are followed through steps."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from jellybean.documents import load_project, write_draft
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from jellybean_agent import file_sha256
from tests.support.exported_models import CLASSES, replace, sklearn_classifier, tensor, write

FLOAT = TensorProto.FLOAT
Shape = list[int | str]


def problems(folder: Path) -> list[DocumentProblem]:
    try:
        load_project(folder, profiles=False)
    except DocumentError as error:
        return list(error.problems)
    return []


def identity(path: Path, given: Shape, made: Shape) -> None:
    """A model that is only read here, unless its shapes are the same."""
    write(path, [helper.make_node("Identity", ["x"], ["y"])], {"x": given}, [tensor("y", FLOAT, made)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`risk` is a classifier as skl2onnx exports it, label first; `decide` takes its scores, but reads the label."""
    sklearn_classifier(tmp_path / "risk.onnx")
    identity(tmp_path / "decide.onnx", ["n", CLASSES], ["n", CLASSES])
    write_draft(tmp_path / "p", [tmp_path / "risk.onnx", tmp_path / "decide.onnx"])
    replace(tmp_path / "p", ", output: probabilities}", "}")
    return tmp_path / "p"


def pair(tmp_path: Path, made: Shape, wanted: Shape) -> Path:
    """A project of two models, of which the second reads the first, whatever its shape."""
    identity(tmp_path / "one.onnx", ["n", 4], made)
    identity(tmp_path / "two.onnx", wanted, wanted)
    write_draft(tmp_path / "p", [tmp_path / "one.onnx", tmp_path / "two.onnx"])
    text = (tmp_path / "p/workflow.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^  two_input.*\n", "", text).replace("inputs: [two_input]", "inputs: [one]")
    (tmp_path / "p/workflow.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "p"


def insert(folder: Path, operators: str) -> None:
    replace(folder, "operators:\n", f"operators:\n{operators}")


def test_another_output_that_fits_is_named_first_and_no_step_that_cannot_work(folder: Path) -> None:
    (problem,) = problems(folder)
    assert problem.message.endswith(
        "int64 given, float32 expected; 1 dimension given, 2 expected ([n] given, [n, 3] expected)"
    )
    assert problem.hint == "write {from: risk, output: probabilities} in place of risk, or change one of the models"
    replace(folder, "inputs: [risk]", "inputs: [{from: risk, output: probabilities}]")
    assert problems(folder) == []


def with_network(folder: Path, name: str = "proba") -> Path:
    """Add a variant of `risk` whose only output has another name, as torch writes it: no output is in both."""
    path = folder / "models/mlp.onnx"
    write(path, [helper.make_node("Identity", ["x"], [name])], {"x": ["n", 4]}, [tensor(name, FLOAT, ["n", CLASSES])])
    variant = f"mlp: {{model: models/mlp.onnx, sha256: {file_sha256(path)}}}"
    replace(folder, "    variants:\n      risk:", f"    variants:\n      {variant}\n      risk:")
    return folder


def test_another_output_of_one_variant_is_named_for_that_variant(folder: Path) -> None:
    (problem,) = problems(with_network(folder))
    assert problem.message.startswith("risk (risk) does not fit input")
    assert problem.hint == "write output: probabilities in risk, or change one of the models"
    replace(folder, "risk: {model:", "risk: {output: probabilities, model:")
    assert problems(folder) == []


def test_an_output_that_only_one_variant_has_is_named_in_the_other(folder: Path) -> None:
    replace(with_network(folder), "inputs: [risk]", "inputs: [{from: risk, output: proba}]")
    (problem,) = problems(folder)
    assert problem.message == "model risk of risk has no output 'proba'"
    assert problem.hint.endswith("if risk only calls it otherwise, write in it outputs: {proba: probabilities}")


def test_scores_that_are_a_list_of_maps_are_to_be_exported_again(folder: Path) -> None:
    path = folder / "models/risk.onnx"
    before = file_sha256(path)
    replace(with_network(folder), before, sklearn_classifier(path, zipmap=True))
    (problem,) = problems(folder)
    assert problem.hint == (
        "export risk again, as its output probabilities is a list of maps (ZipMap), which is not served: export with "
        "skl2onnx's options={'zipmap': False}, which gives a tensor; then write output: probabilities in risk, or "
        "change one of the models"
    )


def test_variants_that_answer_differently_are_told_of_scores_that_are_a_list_of_maps(tmp_path: Path) -> None:
    sklearn_classifier(tmp_path / "risk.onnx", zipmap=True)
    write_draft(tmp_path / "p", [tmp_path / "risk.onnx"])
    (problem,) = problems(with_network(tmp_path / "p"))
    assert "answer differently" in problem.message
    assert problem.hint.endswith("options={'zipmap': False}, which gives a tensor")


def test_an_edge_after_steps_is_checked_with_what_they_give(folder: Path) -> None:
    def operator(name: str, upstream: str, step: str, arguments: str) -> str:
        code = f"{{python: 'jellybean_agent.steps:{step}', with: {{{arguments}}}}}"
        return f"  {name}: {{inputs: [{upstream}], variants: {{{step}: {code}}}}}\n"

    insert(
        folder,
        operator("cast", "risk", "cast", "to: float32, dtype: int64, shape: []")
        + operator("flat", "cast", "flatten", "shape: []"),
    )
    replace(folder, "inputs: [risk]\n", "inputs: [flat]\n")
    (problem,) = problems(folder)
    assert problem.message.endswith("shapes differ ([n, 1] given, [n, 3] expected)")
    assert problem.hint == "change one of the models"


@pytest.mark.parametrize(
    ("made", "wanted", "offers"),
    [
        (["n"], ["n", 2], []),
        (["n"], ["n", 1], ["flatten"]),
        (["n", 1], ["n"], ["reshape"]),
        (["n", 5], ["n"], []),
        (["n", 3, 5], ["n", 15], ["flatten"]),
        (["n", 3, 5], ["n", 16], []),
        (["n", 3, "w"], ["n", 15], ["flatten"]),
        (["n", 12], ["n", "h", "w"], []),
        (["n", 12], ["n", "h", 4], ["reshape"]),
        (["n", 12], ["n", "h", 5], []),
    ],
)
def test_a_step_is_offered_only_if_it_can_give_the_shape(
    tmp_path: Path, made: Shape, wanted: Shape, offers: list[str]
) -> None:
    (problem,) = problems(pair(tmp_path, made, wanted))
    assert re.findall(r"steps:(\w+)", problem.hint) == offers


def test_type_and_shape_are_converted_by_two_steps_that_work_as_offered(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (4, 8, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=pictures)
    identity(tmp_path / "net.onnx", ["n", 3, 8, 6], ["n", 3, 8, 6])
    write_draft(tmp_path / "p", [tmp_path / "net.onnx"], tmp_path / "data.npz")
    (problem,) = problems(tmp_path / "p")
    assert "save the held-out inputs as array.astype('float32').transpose(0, 3, 1, 2), and send that" in problem.hint
    operator = r"(\S+: \{.*?\}\}\}\})"
    found = re.search(rf"steps between them: under operators {operator} and {operator}, and (\S+) in", problem.hint)
    assert found is not None, problem.hint
    replace(tmp_path / "p", "inputs: [input]", f"inputs: [{found[3]}]")
    insert(tmp_path / "p", f"  {found[1]}\n  {found[2]}\n")
    assert problems(tmp_path / "p") == []
    workload = workload_of(load_project(tmp_path / "p", profiles=False))
    selection = {step.name: step.models[0].variant for step in workload.steps}
    assert np.array_equal(Flow(workload).answer(0, selection)["net"], pictures[:1].transpose(0, 3, 1, 2))


def test_an_offered_operator_has_a_name_that_is_free(tmp_path: Path) -> None:
    folder = pair(tmp_path, ["n", 3, 5], ["n", 15])
    insert(folder, "  one_flatten: {inputs: [two], variants: [a]}\n")
    assert "under operators one_flatten_2: {" in problems(folder)[0].hint
