"""TODOs: a comment is a note with its line; the word in place of a value is an error that the comment explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import load_project, read_todos
from jellybean.documents.schema.todos import TodoComment, todo_comments
from jellybean.errors import DocumentError
from tests.unit.documents.conftest import INFRASTRUCTURE, WORKFLOW


def test_comments_with_their_continuation_and_nothing_else() -> None:
    text = """\
# TODO: the first,
#   on two lines
# and no more
a: 1 # TODO second
b: "a # TODO: that is text"
c: 'x' # TODO: third
  # TODO: fourth
  #   goes on
  # TODO: fifth
d: |
  # TODO: text as well
"""
    comments = {comment.line: comment.text for comment in todo_comments(text)}
    assert comments == {
        1: "the first, on two lines",
        4: "second",
        6: "third",
        7: "fourth goes on",
        9: "fifth",
    }
    assert [comment.last_line for comment in todo_comments(text)] == [2, 4, 6, 8, 9]
    assert todo_comments("a: 1 # nothing") == ()
    assert todo_comments("a: [ # TODO: no YAML") == (TodoComment(1, 1, "no YAML"),)


def test_in_order_of_the_documents(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text(WORKFLOW.replace("slo:", "# TODO: targets\nslo:"), encoding="utf-8")
    (tmp_path / "infrastructure.yaml").write_text(f"# TODO: prices\n{INFRASTRUCTURE}", encoding="utf-8")
    assert [(Path(todo.file).name, todo.text) for todo in read_todos(tmp_path)] == [
        ("workflow.yaml", "targets"),
        ("infrastructure.yaml", "prices"),
    ]
    assert load_project(tmp_path, profiles=False).workflow.name == "parcels"  # a comment keeps nothing from being read


def test_a_value_that_is_still_todo_is_an_error_beside_all_others(tmp_path: Path) -> None:
    text = WORKFLOW.replace("rate: 12/s, message: 50 KiB", "rate: TODO, message: 50 KiB} # TODO: per second\n#{")
    (tmp_path / "workflow.yaml").write_text(text.replace("accuracy: 90", "accuracy: TODO"), encoding="utf-8")
    (tmp_path / "infrastructure.yaml").write_text(
        INFRASTRUCTURE.replace("50 KiB", "x").replace("20 ms", "20 min/s"), encoding="utf-8"
    )
    with pytest.raises(DocumentError) as raised:
        load_project(tmp_path, profiles=False)
    found = {(problem.path, problem.message, problem.hint) for problem in raised.value.problems}
    assert ("sources.camera.rate", "is still to be written (TODO)", "per second") in found
    assert ("slo.accuracy", "is still to be written (TODO)", "") in found
    assert "links.0.latency" in {path for path, _, _ in found}
    assert len(found) == 3
