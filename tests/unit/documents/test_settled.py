"""A TODO comment of a draft is settled once what it is about was changed by hand; others are left to people."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import read_todos, remove_todos, write_blank, write_draft
from jellybean.documents.draft.settled import resolved_reason
from jellybean.documents.schema.flow_style import flow_style
from tests.support.paths import EXAMPLES

DIGITS = sorted((EXAMPLES / "digits" / "models").glob("*.onnx"))
EDITS = {  # beginning of a comment -> file, what is written in place of what
    "tier, rate and message": ("workflow.yaml", "rate: 1/s", "rate: 5/s"),
    "check that shape reads": ("workflow.yaml", "inputs: [{from: find, ratio: measured}]", "inputs: [find]"),
    "without labels": ("workflow.yaml", "# labels:", "labels:"),
    "the targets": ("workflow.yaml", "# slo:", "slo:"),
    "your machines": ("infrastructure.yaml", "count: 2, price: 0.05", "count: 3, price: 0.05"),
    "the network": ("infrastructure.yaml", "latency: 20 ms", "latency: 5 ms"),
}


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft") / "p"
    write_draft(folder, DIGITS)
    return folder


def copy(drafted: Path, folder: Path) -> Path:
    for name in ("workflow.yaml", "infrastructure.yaml"):
        (folder / name).write_text((drafted / name).read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text, old
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")


def settled(folder: Path) -> list[str]:
    return [todo.text for todo in read_todos(folder) if todo.resolved_reason]


@pytest.mark.parametrize("begins", EDITS)
def test_what_was_changed_by_hand_is_settled_and_nothing_else(begins: str, drafted: Path, tmp_path: Path) -> None:
    folder = copy(drafted, tmp_path)
    assert settled(folder) == []
    edit(folder, *EDITS[begins])
    (text,) = settled(folder)
    assert text.startswith(begins)


def test_settled_comments_are_removed_and_all_other_lines_stay(drafted: Path, tmp_path: Path) -> None:
    folder = copy(drafted, tmp_path)
    for change in EDITS.values():
        edit(folder, *change)
    files = ("workflow.yaml", "infrastructure.yaml")
    before = {name: (folder / name).read_text(encoding="utf-8").splitlines() for name in files}
    todos = read_todos(folder)
    gone = {
        (todo.file, line) for todo in todos if todo.resolved_reason for line in range(todo.line, todo.last_line + 1)
    }
    assert len({file for file, _ in gone}) == 2
    assert [todo.text for todo in remove_todos(todos)] == [todo.text for todo in todos if todo.resolved_reason]
    for name, lines in before.items():
        kept = [line for number, line in enumerate(lines, 1) if (str(folder / name), number) not in gone]
        assert (folder / name).read_text(encoding="utf-8").splitlines() == kept
    assert settled(folder) == []
    assert len(read_todos(folder)) == len(todos) - len(EDITS)


def test_a_comment_that_a_person_wrote_or_continued_is_never_settled(drafted: Path, tmp_path: Path) -> None:
    folder = copy(drafted, tmp_path)
    for change in EDITS.values():
        edit(folder, *change)
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    own = "# TODO: the targets, as agreed\n"
    text = text.replace("sustains the rates\n", "sustains the rates\n#   (ask Ann)\n").replace("slo:", f"{own}slo:")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    remove_todos(read_todos(folder))
    assert own in (folder / "workflow.yaml").read_text(encoding="utf-8")
    assert "#   (ask Ann)" in (folder / "workflow.yaml").read_text(encoding="utf-8")


def test_blanks_that_were_filled_in(tmp_path: Path) -> None:
    write_blank(tmp_path)
    edit(tmp_path, "workflow.yaml", "inputs: TODO", "inputs: data/heldout.npz#input")
    assert [text.partition(",")[0] for text in settled(tmp_path)] == ["held-out inputs"]
    edit(tmp_path, "workflow.yaml", "model: TODO", "model: models/a.onnx")
    assert len(settled(tmp_path)) == 2


def test_a_settled_comment_beside_a_value_stays_and_is_not_said_to_be_removed(drafted: Path, tmp_path: Path) -> None:
    folder = copy(drafted, tmp_path)
    edit(folder, *EDITS["the targets"])
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("# TODO: the targets"))
    text = text.replace(f"{line}\n", "").replace("kind: Workflow", f"kind: Workflow  {line}")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (todo,) = (todo for todo in read_todos(folder) if todo.resolved_reason)
    assert todo.beside_value
    assert remove_todos(read_todos(folder)) == ()
    assert (folder / "workflow.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["output:0", "a: b"])
def test_a_name_with_a_colon_is_settled_too(name: str) -> None:
    text = (
        f"check that op answers with {name}: the first output of the file, label, is the class; to send that, remove "
        f"output: {name}"
    )
    assert resolved_reason(text, {"operators": {"op": {"variants": {"v": {"output": name}}}}}) == ""
    assert "no longer has" in resolved_reason(text, {"operators": {"op": {"variants": {"v": {"output": [name]}}}}})
    edge = {"from": "a", "output": name}
    text = f"check that op reads {flow_style(edge)}: its only fit; if not, change it"
    assert resolved_reason(text, {"operators": {"op": {"inputs": [edge]}}}) == ""
    assert "no longer reads" in resolved_reason(text, {"operators": {"op": {"inputs": ["a"]}}})


@pytest.mark.parametrize("options", [(), ("--fix",), ("--json",)])
@pytest.mark.parametrize("kind", ["missing", "folder", "outside"])
def test_a_model_of_a_draft_that_is_no_file_is_a_problem_with_its_place(
    kind: str, options: tuple[str, ...], drafted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(drafted, folder)
    model = next((folder / "models").glob("*.onnx"))
    model.unlink()
    if kind == "folder":
        model.mkdir()
    elif kind == "outside":
        model.symlink_to("/etc/hostname")
    assert run(["validate", str(folder), *options]) == 2
    shown = capsys.readouterr()
    assert model.name in shown.err + shown.out
    assert "Traceback" not in shown.err
