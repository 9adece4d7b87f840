"""The TODO comments of a project's documents, in order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.layout import WORKFLOW_FILE, document_files, workflow_folders
from jellybean.documents.schema.todos import TodoComment, todo_comments


@dataclass(frozen=True, slots=True)
class Todo:
    """A `# TODO` comment: what is still to be written or checked. Lines count from 1."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """The TODO as JSON values."""
        return asdict(self)


def read_todos(directory: Path) -> tuple[Todo, ...]:
    """TODO comments of a project's documents that can be read: workflows first, then the infrastructure."""
    folders = list(workflow_folders(directory).values())
    files = [*(folder / WORKFLOW_FILE for folder in folders), *document_files(directory).values()]
    return tuple(Todo(str(file), comment.line, comment.text) for file in files for comment in _comments(file))


def _comments(file: Path) -> tuple[TodoComment, ...]:
    try:
        return todo_comments(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return ()  # reported when the document is read
