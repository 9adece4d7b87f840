"""The comment that a draft has behind each operator: inputs and outputs of its model, which another export changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.checks.files import inside
from jellybean.documents.checks.tensors import Port
from jellybean.documents.draft.models import DraftModel, read_model_file
from jellybean.documents.edits import Edit, read_exactly, write_edits
from jellybean.documents.layout import WORKFLOW_FILE, workflow_folders
from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import read_file
from jellybean.errors import JellyBeanError
from jellybean.quantities import InvalidValueError
from jellybean_agent import printable

_DTYPE = r"(?:b?float\d+\w*|u?int\d+|bool|str\d*|object|[a-z_]+\(\S+)"
_PORT = rf"[^,]+ {_DTYPE}(?:\[[\d?, ]*\])?"
_COMMENT = re.compile(rf"  (?P<operator>\S.*):  # (?P<ports>{_PORT}(?:, {_PORT})* -> {_PORT}(?:, {_PORT})*)\r?")


@dataclass(frozen=True, slots=True)
class OutdatedComment:
    """A comment that `init` wrote on an operator's tensors, which its models no longer have. Lines count from 1."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    edit: Edit

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}: {self.before} is now {self.after}"

    def to_dict(self) -> dict[str, Any]:
        """The comment as JSON values."""
        return {name: getattr(self, name) for name in ("file", "line", "operator", "before", "after")}


def ports_text(inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """Inputs and outputs of a model, as the comment has them."""
    return " -> ".join(", ".join(map(port_text, ports)) for ports in (inputs, outputs))


def port_text(port: Port) -> str:
    """A tensor's name, type and shape; ? is any size."""
    sizes = port.tensor.shape
    shape = "" if sizes is None else f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"
    return f"{printable(port.name)} {port.tensor.dtype}{shape}"


def outdated_port_comments(directory: Path) -> tuple[OutdatedComment, ...]:
    """Comments of the form that `init` writes which no model of their operator has, in the project's workflows."""
    return tuple(
        comment for folder in workflow_folders(directory).values() or [directory] for comment in _outdated(folder)
    )


def rewrite_port_comments(comments: Sequence[OutdatedComment]) -> None:
    """Write what the models have into the comments. OSError if a file cannot be written."""
    for file in dict.fromkeys(comment.file for comment in comments):
        write_edits(Path(file), (comment.edit for comment in comments if comment.file == file))


def variant_models(operator: Any, folder: Path) -> Mapping[str, DraftModel]:
    """Variant -> its model, of an operator as written; without those whose file cannot be read."""
    variants = operator.get("variants") if isinstance(operator, Mapping) else None
    models: dict[str, DraftModel] = {}
    for name, fields in variants.items() if isinstance(variants, Mapping) else ():
        if isinstance(fields, Mapping) and isinstance(model := fields.get("model"), str):
            try:
                models[str(name)] = read_model_file(str(name), inside(folder, model))
            except (InvalidValueError, JellyBeanError, OSError):
                continue  # reported when the project is loaded
    return models


def _sent_first(model: DraftModel, variant: Mapping[str, Any]) -> list[Port]:
    """The outputs of a variant's model: the one that it sends by default, then the others as the file has them."""
    outputs = list(model.signature.outputs)
    sent = variant.get("output") or model.label or outputs[0].name
    return sorted(outputs, key=lambda port: port.name != sent)


def _outdated(folder: Path) -> Iterator[OutdatedComment]:
    file = folder / WORKFLOW_FILE
    try:
        text = read_exactly(file)
        document = read_file(file).data
    except (OSError, ValueError):
        return
    operators = document.get("operators") if isinstance(document, Mapping) else None
    by_key = {flow_style(name): name for name in operators} if isinstance(operators, Mapping) else {}
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = _COMMENT.fullmatch(line)
        if match and operators is not None and (name := by_key.get(match["operator"])) is not None:
            models = variant_models(operators[name], folder)
            now = [
                ports_text(model.signature.inputs, _sent_first(model, operators[name]["variants"].get(variant, {})))
                for variant, model in models.items()
            ]
            drafted = [ports_text(model.signature.inputs, model.signature.outputs) for model in models.values()]
            if now and match["ports"] not in {*now, *drafted}:
                edit = Edit(start + match.start("ports"), start + match.end("ports"), now[0])
                yield OutdatedComment(str(file), number, name, match["ports"], now[0], edit)
        start += len(line) + 1
