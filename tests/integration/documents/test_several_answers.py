"""Labels of a workflow with several answers: it must say which answer they are for, and that one is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.bench import held_out
from jellybean.bench.shown_answers import JudgedAnswer, shown_answers
from jellybean.documents import load_project, read_todos, write_draft
from jellybean.errors import DocumentError
from jellybean.profiler import profile
from jellybean.profiler.accuracy import all_selections, measure_accuracy
from jellybean.profiler.cache import Cache
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from tests.support.exported_models import INFRASTRUCTURE, replace
from tests.support.tiny_models import difference, scale

ROWS = 12
WORKFLOW = """\
kind: Workflow
name: watch
sources:
  siren: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#siren}
  left: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#left}
  right: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#right}
operators:
  alarm:
    inputs: [siren]
    variants: {net: {model: models/alarm.onnx, sha256: ALARM}}
  near:
    inputs: [left]
    variants: {net: {model: models/near.onnx, sha256: NEAR}}
  fuse:
    inputs: [near, right]
    variants: {net: {model: models/fuse.onnx, sha256: FUSE}}
labels: data/heldout.npz#labels
metric: top1
"""


def save(folder: Path, **changed: Any) -> None:
    """Held-out data in which `fuse` is right in 3 of 4 rows, and `alarm` in none."""
    siren, left, right = np.random.default_rng(0).normal(size=(3, ROWS, 4)).astype(np.float32)
    labels = (left - right).argmax(axis=1)
    labels[::4] = (labels[::4] + 1) % 4
    siren[np.arange(ROWS), labels] = -9.0
    np.savez(folder / "data/heldout.npz", **{"siren": siren, "left": left, "right": right, "labels": labels, **changed})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the answers `alarm` and `fuse`."""
    (tmp_path / "data").mkdir()
    save(tmp_path)
    text = WORKFLOW
    hashes = {
        "ALARM": scale(tmp_path / "models/alarm.onnx", 1.0),
        "NEAR": scale(tmp_path / "models/near.onnx", 1.0),
        "FUSE": difference(tmp_path / "models/fuse.onnx", "near", "right"),
    }
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (tmp_path / "workflow.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return tmp_path


def said(folder: Path) -> list[str]:
    """The problems of a project."""
    try:
        load_project(folder, profiles=False)
    except DocumentError as error:
        return [f"{problem.path}: {problem.message} ({problem.hint})" for problem in error.problems]
    return []


def labels_of(folder: Path, operator: str) -> Path:
    replace(folder, "metric:", f"labels_of: {operator}\nmetric:")
    return folder


def test_labels_of_several_answers_without_a_choice_are_an_error(folder: Path) -> None:
    assert said(folder) == [
        "labels: 2 operators answer (alarm, fuse), and labels are for one of them "
        "(write labels_of: alarm or labels_of: fuse)"
    ]
    with pytest.raises(DocumentError, match="2 operators answer"):
        profile(load_project(folder, profiles=False))


@pytest.mark.parametrize(
    ("operator", "problem"),
    [
        ("fuze", "labels_of: there is no operator 'fuze' (did you mean 'fuse'?)"),
        ("siren", "labels_of: there is no operator 'siren' (write labels_of: alarm or labels_of: fuse)"),
        ("near", "labels_of: near does not answer: it feeds fuse (write labels_of: alarm or labels_of: fuse)"),
    ],
)
def test_labels_of_anything_but_an_answer_are_an_error(folder: Path, operator: str, problem: str) -> None:
    assert said(labels_of(folder, operator)) == [problem]


def test_labels_of_without_labels_is_an_error(folder: Path) -> None:
    replace(folder, "labels: data/heldout.npz#labels\nmetric: top1\n", "labels_of: fuse\n")
    assert said(folder) == ["labels_of: labels_of without labels (write labels: data/heldout.npz#labels too)"]


@pytest.mark.parametrize(("operator", "percent"), [("fuse", 75.0), ("alarm", 0.0)])
def test_accuracy_is_of_the_answer_that_labels_are_for(folder: Path, operator: str, percent: float) -> None:
    work = workload_of(load_project(labels_of(folder, operator), profiles=False))
    found = measure_accuracy(work, Flow(work), all_selections(work), Cache.open(folder), lambda done: None)
    assert found.percent == (percent,)


def test_a_change_of_labels_of_is_not_answered_from_the_cache(folder: Path) -> None:
    digests = set()
    for operator in ("alarm", "fuse"):
        project = load_project(folder, [f"labels_of={operator}"], profiles=False)
        digests.add(workload_of(project).digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.arange(ROWS) % 4 + 1, "row 3 is 4, but fuse net answers with 4 scores (float32 [1, 4])"),
        (np.ones((ROWS, 2)), "top1 needs one class index per row"),
    ],
)
def test_labels_are_checked_against_their_answer(folder: Path, labels: Any, problem: str) -> None:
    assert said(labels_of(folder, "fuse")) == []
    save(folder, labels=labels)
    (message,) = said(folder)
    assert message.startswith("labels: ")
    assert problem in message


def test_labels_of_another_length_are_one_error(folder: Path) -> None:
    labels_of(folder, "fuse")
    save(folder, labels=np.zeros(10, np.int64))
    assert said(folder) == [
        "labels: data/heldout.npz#labels has 10 rows, data/heldout.npz#siren has 12 "
        "(row i of every array belongs to request i)"
    ]
    save(folder, siren=np.zeros((5, 4), np.float32))
    assert said(folder) == [
        "sources.siren.inputs: data/heldout.npz#siren has 5 rows, data/heldout.npz#left has 12 "
        "(row i of every array belongs to request i)"
    ]


def test_shown_answers_are_those_that_the_labels_are_for(folder: Path) -> None:
    data = held_out(load_project(labels_of(folder, "fuse"), profiles=False))
    assert data.labels_of == "fuse"
    outputs = {"alarm": np.eye(4)[:1], "fuse": np.eye(4)[2:3]}
    (shown,) = shown_answers(data, [JudgedAnswer(0, outputs, 1.0)])
    assert shown.answer == "2 (score 1)"


def test_a_draft_says_that_labels_of_is_to_be_written(folder: Path, tmp_path: Path) -> None:
    drafted = tmp_path / "drafted"
    write_draft(drafted, [folder / "models/alarm.onnx", folder / "models/fuse.onnx"], folder / "data/heldout.npz")
    (todo,) = [todo for todo in read_todos(drafted) if "operators answer" in todo.text]
    assert todo.text == (
        "2 operators answer (alarm, fuse), and labels are for one of them: write its name beside the labels, as "
        "labels_of: fuse"
    )
    assert not todo.resolved_reason
    assert any("2 operators answer (alarm, fuse)" in problem for problem in said(drafted))
    labels_of(drafted, "fuse")
    (todo,) = [todo for todo in read_todos(drafted) if "operators answer" in todo.text]
    assert todo.resolved_reason == "labels_of is written"
    assert not any("operators answer" in problem for problem in said(drafted))
