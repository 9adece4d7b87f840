"""Where a value of the problem stands in the documents, as it is written there, and how to write another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.layout import INFRASTRUCTURE_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER, files_of
from jellybean.documents.overrides import apply_overrides, apply_overrides_of
from jellybean.documents.schema.reader import DocPath, Tree, dotted, read_file
from jellybean.documents.shared import AnyProject, SharedProject


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
        if self.line is None:
            return self.file
        path = Path(self.file)
        own = f"{path.parent.name}/" if path.parent.parent.name == WORKFLOWS_FOLDER else ""  # one of several workflows
        return f"{own}{path.name}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class Places:
    """The places of a project's documents, `--set` options applied.

    By `workflow` and `infrastructure`; where workflows share a fleet, by their names and `infrastructure`.
    """

    def __init__(self, trees: Mapping[str, Tree], *, qualified: bool = False) -> None:
        """`qualified`: paths into a workflow's document begin with its name."""
        self._trees, self._qualified = trees, qualified

    def of(self, document: str, *path: str | int) -> Place:
        """The place of a value."""
        tree = self._trees[document]
        value = _value(tree, path)
        mark = tree.place(path, key=True)
        within = (document,) if self._qualified and document != "infrastructure" else ()
        return Place(mark.file, mark.line, dotted((*within, *path)), None if value is None else _text(value))


def places_of(project: AnyProject, overrides: Sequence[str] = ()) -> Places:
    """The places of the documents that a project was read from, with the same overrides."""
    if not isinstance(project, SharedProject):
        files = files_of(project.directory)
        trees = {name: read_file(file) for name, file in files.items() if name != "profiles"}
        apply_overrides(trees, overrides)
        return Places(trees)
    fleet = read_file(project.directory / INFRASTRUCTURE_FILE)
    own = {name: {"workflow": read_file(p.directory / WORKFLOW_FILE)} for name, p in project.workflows.items()}
    apply_overrides_of(fleet, own, overrides)
    return Places({"infrastructure": fleet, **{n: trees["workflow"] for n, trees in own.items()}}, qualified=True)


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
