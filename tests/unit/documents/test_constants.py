"""`constants:` of a variant: which inputs they may feed, and what `validate` says of those that they may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from jellybean.documents import build_problem, load_project, write_hashes, wrong_hashes
from jellybean.errors import DocumentError
from tests.support.exported_forms import FLOAT, INT64, save_graph

INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 1, price: 1 USD/h, memory: 1 GiB}}
"""
WORKFLOW = """\
kind: Workflow
name: scaled
sources: {x: {tier: edge, rate: 1/s, message: 1 KiB}}
operators:
  scale:
    inputs: [x]
    variants:
      only: {model: only.onnx, MORE}
"""


def problems(folder: Path, more: str) -> str:
    """What is wrong with a project whose model takes a factor (a number), a size (two integers) and rows."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["y"]),
        helper.make_node("Identity", ["size"], ["z"]),
    ]
    inputs = {"factor": (FLOAT, []), "x": (FLOAT, ["N", 2]), "size": (INT64, [2])}
    save_graph(folder / "only.onnx", nodes, inputs, {"y": (FLOAT, ["N", 2]), "z": (INT64, [2])})
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("MORE", more), encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(
        "kind: Profiles\noperators: {scale: {only: {latency: {box: {1: 1 ms}}}}}\n", encoding="utf-8"
    )
    write_hashes(wrong_hashes(folder))
    try:
        problem = build_problem(load_project(folder))
    except DocumentError as error:
        return "\n".join(f"{one.path}: {one.message}; {one.hint}" for one in error.problems)
    ports = next(iter(problem.operators[0].variants)).model.ports
    return repr(sorted(ports.constants.items()))


def test_constants_are_part_of_the_plan_as_json(tmp_path: Path) -> None:
    found = problems(tmp_path, "constants: {factor: 0.5, size: [640, 480]}")
    assert found == "[('factor', '0.5'), ('size', '[640,480]')]"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("constants: {size: [1, 2]}", "1 inputs, but model only takes 2 (factor, x)"),
        ("constants: {factr: 1, size: [1, 2]}", "'factr' is none of its inputs; did you mean 'factor'"),
        ("constants: {factor: 1, size: [1, 2.5]}", "is no int64"),
        ("constants: {factor: 1, size: 3}", "has shape [], the model takes [2]"),
        ("constants: {factor: 1.0e+39, size: [1, 2]}", "is no float32, which would have inf"),
        ("constants: {factor: [[1]], size: [1, 2]}", "has shape [1, 1], the model takes []"),
        ("constants: {factor: half, size: [1, 2]}", "is no number"),
        ("constants: {factor: .nan, size: [1, 2]}", "is no number"),
        ("constants: {x: 1, factor: 1, size: [1, 2]}", "as many rows as there are requests in a run"),
        ("constants: {factor: 1, size: [1, 2]}, cuts: 1", "a model with constants stays whole"),
    ],
)
def test_constants_that_do_not_fit_are_refused_in_words(tmp_path: Path, more: str, expected: str) -> None:
    assert expected in problems(tmp_path, more)
