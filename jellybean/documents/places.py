"""Where a value of the problem stands in the documents, as it is written there, and how to write another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.layout import files_of
from jellybean.documents.overrides import apply_overrides
from jellybean.documents.reader import DocPath, Tree, dotted, read_file


@dataclass(frozen=True, slots=True)
class Place:
    """One value. `file` is a path or a `--set` option (then there is no line); `written` is None for a default.

    `path` is as `--set` takes it. A default has the place of what encloses it.
    """

    file: str
    line: int | None
    path: str
    written: str | None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{Path(self.file).name}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class Places:
    """The places of a project's documents, `--set` options applied."""

    def __init__(self, directory: Path, overrides: Sequence[str] = ()) -> None:
        self._trees = {name: read_file(file) for name, file in files_of(directory).items() if name != "profiles"}
        apply_overrides(self._trees, overrides)

    def of(self, document: str, *path: str | int) -> Place:
        """The place of a value of `workflow` or `infrastructure`."""
        tree = self._trees[document]
        value = _value(tree, path)
        mark = tree.place(path, key=True)
        return Place(mark.file, mark.line, dotted(path), None if value is None else _text(value))


def _text(value: Any) -> str:
    """The value as a person writes it."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _value(tree: Tree, path: DocPath) -> Any:
    """What is written at a path; None when nothing is."""
    value = tree.data
    for part in path:
        known = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
        value = known.get(part)
    return value
