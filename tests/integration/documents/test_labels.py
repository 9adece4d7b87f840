"""Labels that a metric cannot compare with answers are an error, not a false accuracy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from jellybean.documents import load_project, write_draft
from jellybean.errors import DocumentError
from tests.support.exported_models import replace, sklearn_classifier, tensor, write
from tests.support.paths import EXAMPLES

FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8


def said(folder: Path, labels: Any, metric: str, made: tuple[int, list[Any]] = (FLOAT, ["n", 5])) -> list[str]:
    """Messages and hints of a project whose model answers with `made`, with these labels."""
    node = helper.make_node("Identity", ["x"], ["y"])
    write(folder / "net.onnx", [node], {"x": ["n", 4]}, [tensor("y", *made)])
    np.savez(folder / "data.npz", x=np.ones((6, 4), np.float32), labels=labels)
    write_draft(folder / "p", [folder / "net.onnx"], folder / "data.npz")
    text = (folder / "p/workflow.yaml").read_text(encoding="utf-8")
    lines = [f"metric: {metric}" if line.startswith("metric:") else line for line in text.splitlines()]
    (folder / "p/workflow.yaml").write_text("\n".join(lines), encoding="utf-8")
    try:
        load_project(folder / "p", profiles=False)
    except DocumentError as error:
        assert {problem.path for problem in error.problems} == {"labels"}
        return [f"{problem.message} ({problem.hint})" for problem in error.problems]
    return []


TEXTS = np.zeros((6, 9), np.uint8)


@pytest.mark.parametrize(
    ("labels", "metric", "made"),
    [
        (np.arange(6) % 5, "top1", (FLOAT, ["n", 5])),
        ((np.arange(6) % 5).astype(np.float32)[:, None], "top1", (FLOAT, ["n", 5])),
        (np.arange(6) % 2 == 0, "top1", (FLOAT, ["n", 2])),
        (np.arange(6), "top1", (FLOAT, ["n", "classes"])),
        (np.arange(6), "exact_match", (TensorProto.INT64, ["n"])),
        (np.ones((6, 1, 5)), "exact_match", (FLOAT, ["n", 5])),
        (np.ones((6, 3, 5)), "exact_match", (FLOAT, ["n", "h", 5])),
        (np.ones((6, 5)), "exact_match", (FLOAT, ["n", "h", 5])),
        (TEXTS, "word_accuracy", (UINT8, ["n", "m"])),
    ],
)
def test_labels_that_fit(tmp_path: Path, labels: Any, metric: str, made: tuple[int, list[Any]]) -> None:
    assert said(tmp_path, labels, metric, made) == []


@pytest.mark.parametrize(
    ("labels", "metric", "made", "message"),
    [
        (
            np.ones((6, 8, 32), np.float32),
            "top1",
            (FLOAT, ["n", 5]),
            "labels are float32 [6, 8, 32]; top1 needs one class index per row (save whole numbers from 0, int64 [6])",
        ),
        (np.arange(6) / 2, "top1", (FLOAT, ["n", 5]), "whole numbers from 0, but row 1 is 0.5"),
        (np.arange(6) - 1, "top1", (FLOAT, ["n", 5]), "whole numbers from 0, but row 0 is -1"),
        (
            np.arange(6),
            "top1",
            (FLOAT, ["n", 5]),
            "row 5 is 5, but net net answers with 5 scores (float32 [n, 5]) (save class indices from 0 to 4)",
        ),
        (np.arange(6), "top1", (TensorProto.INT64, ["n"]), "but net net answers with int64 [n] (write metric: exact"),
        (np.arange(6), "exact_match", (FLOAT, ["n", 5]), "float32 [n, 5] (for the index of the highest score write"),
        (np.ones((6, 8, 32)), "exact_match", (FLOAT, ["n", 5]), "labels are float64 [6, 8, 32]; exact_match compares"),
        (np.arange(6), "word_accuracy", (UINT8, ["n", 9]), "word_accuracy needs a text per row: UTF-8 bytes"),
        (TEXTS, "character_accuracy", (FLOAT, ["n", 5]), "compares them with texts (uint8), but net net answers with"),
    ],
)
def test_labels_that_do_not_fit(
    tmp_path: Path, labels: Any, metric: str, made: tuple[int, list[Any]], message: str
) -> None:
    (problem,) = said(tmp_path, labels, metric, made)
    assert message in problem


def test_a_classifier_that_answers_with_the_class_is_told_its_scores(tmp_path: Path) -> None:
    sklearn_classifier(tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", X=np.ones((6, 4), np.float32), labels=np.arange(6) % 3)
    write_draft(tmp_path / "p", [tmp_path / "net.onnx"], tmp_path / "data.npz")
    load_project(tmp_path / "p", profiles=False)
    replace(tmp_path / "p", ", output: probabilities}", "}")
    with pytest.raises(DocumentError, match="or send the scores: output: probabilities in the variant"):
        load_project(tmp_path / "p", profiles=False)


@pytest.mark.parametrize("more", [False, True])
def test_an_anomaly_detector_is_told_to_compare_the_class(tmp_path: Path, more: bool) -> None:
    """Its scores are one number for a request (skl2onnx's IsolationForest): they are no scores of classes."""
    outputs = {"label": (TensorProto.INT64, ["n", 1]), "scores": (FLOAT, ["n", 1])}
    outputs |= {"both": (FLOAT, ["n", 2])} if more else {}
    nodes = [
        helper.make_node("ArgMax", ["x"], ["label"], axis=1),
        helper.make_node("ReduceMax", ["x"], ["scores"], axes=[1]),
        *([helper.make_node("Identity", ["x"], ["both"])] if more else []),
    ]
    write(tmp_path / "net.onnx", nodes, {"x": ["n", 2]}, [tensor(name, *made) for name, made in outputs.items()])
    np.savez(tmp_path / "data.npz", x=np.ones((6, 2), np.float32), labels=np.arange(6) % 2)
    write_draft(tmp_path / "p", [tmp_path / "net.onnx"], tmp_path / "data.npz")
    path = tmp_path / "p/workflow.yaml"
    written = re.sub("output: [a-z]+, ", "", re.sub("metric: .*", "metric: top1", path.read_text(encoding="utf-8")))
    hints: dict[str, str] = {}
    for output in ("label", "scores"):
        text = written.replace("{model:", f"{{output: {output}, model:")
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DocumentError) as error:
            load_project(tmp_path / "p", profiles=False)
        (problem,) = error.value.problems
        assert "top1 needs an answer with a score for each class" in problem.message
        hints[output] = problem.hint
    both = "send the scores: output: both in the variant"
    assert hints["label"] == f"write metric: exact_match{', or ' + both if more else ''}"
    compare = "write metric: exact_match and send the class: output: label in the variant"
    assert hints["scores"] == f"{both if more else 'export the model with a score for each class'}, or {compare}"


@pytest.mark.parametrize("name", ["digits", "split"])
def test_labels_of_the_examples_fit(name: str) -> None:
    load_project(EXAMPLES / name, profiles=False)


@pytest.mark.parametrize(
    ("labels", "made", "message"),
    [
        (np.array([[np.nan] * 5] * 6), (FLOAT, ["n", 5]), "row 0 has nan, which no float32"),
        (np.array([[0.5] * 5] * 5 + [[0.1] * 5]), (FLOAT, ["n", 5]), "row 5 has 0.1, which no float32"),
        (np.array([[1] * 5] * 3 + [[300] * 5] * 3), (UINT8, ["n", 5]), "row 3 has 300, which no uint8"),
        (np.array([[2] * 5] * 6), (TensorProto.BOOL, ["n", 5]), "row 0 has 2, which no bool"),
    ],
)
def test_labels_that_equal_no_answer_are_not_counted_as_wrong(
    tmp_path: Path, labels: Any, made: tuple[int, list[Any]], message: str
) -> None:
    (problem,) = said(tmp_path, labels, "exact_match", made)
    assert message in problem


def test_a_class_that_is_infinite(tmp_path: Path) -> None:
    (problem,) = said(tmp_path, np.array([1.0, np.inf, 0, 0, 0, 0]), "top1", (FLOAT, ["n", "m"]))
    assert "row 1 is inf" in problem
