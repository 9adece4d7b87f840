"""`validate` loads the models with onnxruntime, which refuses some files whose inputs and outputs look sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from jellybean.cli import run
from jellybean.documents import write_draft, write_hashes, wrong_hashes
from tests.support.exported_forms import FLOAT, save_graph

INPUTS, OUTPUTS = {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}
RELU = helper.make_node("Relu", ["x"], ["y"])


def validated(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status of `validate --json`, the problems, and what it says beside them."""
    status = run(["validate", str(folder), "--json"])
    printed = capsys.readouterr()
    problems = json.loads(printed.out)["problems"]
    texts = [f"{problem['path']}: {problem['message']}; {problem['hint']}" for problem in problems]
    return status, "\n".join(texts), printed.err


@pytest.fixture
def project(tmp_path: Path) -> Path:
    save_graph(tmp_path / "net.onnx", [RELU], INPUTS, OUTPUTS)
    write_draft(tmp_path / "p", [tmp_path / "net.onnx"])
    return tmp_path / "p"


@pytest.mark.parametrize(
    ("node", "more", "reason"),
    [
        (RELU, {"ir_version": 99}, "Unsupported model IR version: 99, max supported IR version"),
        (helper.make_node("NoSuchOp", ["x"], ["y"]), {}, "No Op registered for NoSuchOp"),
        (helper.make_node("Add", ["x", "gone"], ["y"]), {}, "Node input 'gone' is not a graph input"),
        (helper.make_node("Mine", ["x"], ["y"], domain="my.ops"), {}, "operator my.ops.Mine is not of ai.onnx"),
    ],
)
def test_a_model_that_onnxruntime_refuses_is_a_problem_of_its_variant(
    project: Path, capsys: pytest.CaptureFixture[str], node: object, more: dict, reason: str
) -> None:
    assert validated(project, capsys)[:2] == (0, "")
    save_graph(project / "models" / "net.onnx", [node], INPUTS, OUTPUTS, opsets={"my.ops": 1}, **more)
    write_hashes(wrong_hashes(project))
    status, problems, _ = validated(project, capsys)
    assert status == 2
    assert problems.startswith("operators.net.variants.net.model: ")
    assert reason in problems


def test_a_model_that_the_cpu_has_no_kernel_for_needs_a_device(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["double"], to=TensorProto.DOUBLE),
        helper.make_node("Tan", ["double"], ["tangent"]),
        helper.make_node("Cast", ["tangent"], ["y"], to=FLOAT),
    ]
    save_graph(project / "models" / "net.onnx", nodes, INPUTS, OUTPUTS)
    write_hashes(wrong_hashes(project))
    status, problems, _ = validated(project, capsys)
    assert (status, "Could not find an implementation for Tan" in problems) == (2, True)
    fleet = project / "infrastructure.yaml"
    text = fleet.read_text(encoding="utf-8")
    fleet.write_text(text.replace("server: {", "server: {device: cuda, ", 1), encoding="utf-8")
    status, problems, told = validated(project, capsys)
    assert (status, problems) == (0, "")
    assert "plan it for a device that has them" in " ".join(told.split())
