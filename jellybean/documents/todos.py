"""The TODO comments of a project's documents, in order; those of a draft that are settled, and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.draft.settled import fits_now, follow_up, resolved_reason
from jellybean.documents.draft.text import todo_lines
from jellybean.documents.edits import Edit, read_exactly, write_edits
from jellybean.documents.layout import WORKFLOW_FILE, document_files, workflow_folders
from jellybean.documents.schema.reader import MAX_BYTES, read_file
from jellybean.documents.schema.todos import todo_comments
from jellybean_agent import read_regular


@dataclass(frozen=True, slots=True)
class Todo:
    """A `# TODO` comment: what is still to be written or checked. Lines count from 1.

    `resolved_reason`: why nothing is left to do, as what a draft's comment is about was changed since; otherwise empty.
    `beside_value`: the comment stands behind a value on its line, so that it is not removed. `follow_up`: the TODO that
    takes its place once it is settled, if one is left. `fits_now`: the edge to write, if the operator that an input is
    named after did not fit when the TODO was written, and now does.
    """

    file: str
    line: int
    text: str
    last_line: int = 0
    resolved_reason: str = ""
    beside_value: bool = False
    follow_up: str = ""
    fits_now: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """The TODO as JSON values."""
        more = {"settled": self.resolved_reason, "follow_up": self.follow_up, "fits_now": self.fits_now}
        given = {name: text for name, text in more.items() if text}
        return {"file": self.file, "line": self.line, "text": self.text, **given}


def read_todos(directory: Path) -> tuple[Todo, ...]:
    """TODO comments of a project's documents that can be read: workflows first, then the infrastructure."""
    folders = list(workflow_folders(directory).values())
    files = [*(folder / WORKFLOW_FILE for folder in folders), *document_files(directory).values()]
    return tuple(todo for file in files for todo in _todos(file))


def _todos(file: Path) -> list[Todo]:
    try:
        text = read_regular(file, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        comments = todo_comments(text)
    except (OSError, ValueError):
        return []  # reported when the document is read
    document = read_file(file).data if comments else None
    lines = text.split("\n")
    document = document if isinstance(document, dict) else {}
    reasons = [resolved_reason(comment.text, document) if document else "" for comment in comments]
    open_todos = [comment.text for comment, reason in zip(comments, reasons, strict=True) if not reason]
    todos: list[Todo] = []
    for comment, reason in zip(comments, reasons, strict=True):
        left = follow_up(comment.text, document, file.parent, open_todos) if reason else ""
        if left in open_todos or any(todo.follow_up == left for todo in todos):
            left = ""  # written once
        beside_value = not lines[comment.line - 1].lstrip().startswith("#")
        fits = "" if reason or not document else fits_now(comment.text, document, file.parent)
        todos.append(Todo(str(file), comment.line, comment.text, comment.last_line, reason, beside_value, left, fits))
    return todos


def remove_todos(todos: Sequence[Todo]) -> tuple[Todo, ...]:
    """Remove settled comments from their files, and return those. One that stands beside a value stays.

    One that leaves something to check is replaced by a comment on that.
    OSError as in `write_edits`.
    """
    removed = tuple(todo for todo in todos if todo.resolved_reason and not todo.beside_value)
    for file in dict.fromkeys(todo.file for todo in removed):
        starts = [0]
        for line in read_exactly(Path(file)).split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        edits = [
            Edit(starts[todo.line - 1], starts[todo.last_line], _written(todo.follow_up))
            for todo in removed
            if todo.file == file
        ]
        write_edits(Path(file), edits)
    return removed


def _written(text: str) -> str:
    """The lines of a TODO comment on an operator; empty without text."""
    return "".join(f"{line}\n" for line in todo_lines(text)) if text else ""
