"""Write missing and changed SHA-256 of models into workflow.yaml. All other bytes of the file stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from jellybean.documents.checks.files import inside, sha256_of
from jellybean.documents.checks.tensors import ModelFileError, read_model
from jellybean.documents.edits import Edit, read_exactly, write_edits
from jellybean.documents.layout import WORKFLOW_FILE, workflow_folders
from jellybean.documents.python_modules import function_source
from jellybean.quantities import InvalidValueError
from jellybean_agent import AgentError

Entry = tuple[Node, Node]  # key and value


@dataclass(frozen=True, slots=True)
class HashFix:
    """A SHA-256 to be written. `before` is empty if the variant has none."""

    file: str
    line: int
    operator: str
    variant: str
    model: str
    before: str
    after: str
    edit: Edit

    def __str__(self) -> str:
        was = f"{self.before[:12]}... -> " if self.before else ""
        return (
            f"{self.file}:{self.line}: {self.operator}.{self.variant} ({self.model}): sha256 {was}{self.after[:12]}..."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fix as JSON values."""
        return {key: value for key, value in asdict(self).items() if key != "edit"}


def wrong_hashes(directory: Path) -> tuple[HashFix, ...]:
    """The SHA-256 that variants of the project lack, and those that are not their file's.

    A function's module needs none, but a written one is compared. Documents that cannot be read and models that do not
    exist are left to `load_project`.
    """
    fixes: list[HashFix] = []
    for folder in workflow_folders(directory).values() or [directory]:
        file = folder / WORKFLOW_FILE
        try:
            text = read_exactly(file)
            root = YAML(typ="rt", pure=True).compose(text)
        except (OSError, ValueError, YAMLError):
            continue
        fixes += _fixes(file, text, root)
    return tuple(fixes)


def write_hashes(fixes: Sequence[HashFix]) -> None:
    """Write the fixes into their files, each of them atomically. OSError if a file cannot be written."""
    for file in dict.fromkeys(fix.file for fix in fixes):
        write_edits(Path(file), (fix.edit for fix in fixes if fix.file == file))


def _fixes(file: Path, text: str, root: Node | None) -> Iterator[HashFix]:
    for operator, (_, spec) in _entries(_entries(root).get("operators", (None, None))[1]).items():
        for variant, (_, fields) in _entries(_entries(spec).get("variants", (None, None))[1]).items():
            entries = _entries(fields)
            if not isinstance(fields, MappingNode):
                continue
            for kind in ("model", "python"):
                key, value = entries.get(kind, (None, None))
                if not isinstance(value, ScalarNode) or key is None:
                    continue
                written = entries.get("sha256", (None, None))[1]
                before = str(written.value) if isinstance(written, ScalarNode) else ""
                digest = _digest(file.parent, kind, str(value.value))
                if digest is None or digest == before.lower() or (kind == "python" and not before):
                    continue
                if before and kind == "model" and not _is_model(file.parent / str(value.value)):
                    continue  # what was written is the only proof of what the file should be
                line = (written or value).start_mark.line + 1
                edit = _edit(text, fields, (key, value), written, digest)
                yield HashFix(str(file), line, operator, variant, str(value.value), before, digest, edit)


def _entries(node: Node | None) -> Mapping[str, Entry]:
    if not isinstance(node, MappingNode):
        return {}
    return {str(key.value): (key, value) for key, value in node.value if isinstance(key, ScalarNode)}


def _digest(folder: Path, kind: str, name: str) -> str | None:
    try:
        return sha256_of(inside(folder, name)) if kind == "model" else function_source(folder, name).sha256
    except (InvalidValueError, AgentError, OSError):
        return None


def _is_model(path: Path) -> bool:
    try:
        read_model(path)
    except ModelFileError:
        return False
    return True


def _edit(text: str, fields: MappingNode, model: Entry, written: Node | None, digest: str) -> Edit:
    """Replace the written hash, or add one after the model: on the same line in `{...}`, else on a line of its own."""
    if written is not None:
        return Edit(written.start_mark.index, written.end_mark.index, digest)
    key, value = model
    end = value.end_mark.index
    if fields.flow_style:
        return Edit(end, end, f", sha256: {digest}")
    end = text.find("\n", end)
    line = f"{' ' * key.start_mark.column}sha256: {digest}"
    return Edit(len(text), len(text), f"\n{line}\n") if end == -1 else Edit(end, end, f"\n{line}")
