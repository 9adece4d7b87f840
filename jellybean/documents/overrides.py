"""`--set path=value`: override one value of a document from the command line.

A path addresses all documents of a project: its first key determines the document (`operators` belongs to the
workflow), and `workflow.`, `infrastructure.` or `profiles.` may precede it. An item of a list is addressed by its index
from 0; the index after the last adds one. Values are parsed as YAML; `null` removes a key or an item. Problems that an
override causes are reported with the option as their location. A target that has a long form in keys of its own
(`LONG_FORMS`) is replaced with them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from jellybean.documents.schema.reader import DocPath, Mark, Tree, dotted, read_text
from jellybean.errors import DocumentProblem
from jellybean.quantities import describe_value, did_you_mean, quoted

SECTIONS = {
    "workflow": (
        *(
            "kind",
            "name",
            "description",
            "sources",
            "operators",
            "labels",
            "labels_of",
            "stream_ids",
            "metric",
            "slo",
            "admission",
            "objective",
        ),
    ),
    "infrastructure": (
        "kind",
        "description",
        "tiers",
        "sites",
        "workers",
        "links",
        "limits",
        "migration",
        "energy",
        "carbon",
    ),
    "profiles": ("machine", "runs", "hop", "accuracy", "provenance", "kind", "operators", "cascades"),
}
NULL_TEXTS = {"", "null", "~"}
MOST_NAMED = 12  # names in a hint
LONG_FORMS: Mapping[DocPath, tuple[str, ...]] = {  # path -> keys beside it
    ("slo", "latency_p99"): ("soft_latency_p99", "latency_penalty")
}
_OPTIONAL_LISTS = {("links",)}
_OPTIONAL_MAPS = {
    *(
        ("slo",),
        ("slo", "margin"),
        ("admission",),
        ("limits",),
        ("migration",),
        ("machine",),
        ("sites",),
        ("energy",),
        ("carbon",),
    ),
    *(("lr_schedule",), ("checkpoint",), ("export",)),  # maps in training.yaml
}


def apply_overrides(
    trees: Mapping[str, Tree], overrides: Sequence[str], names: Sequence[str] = ()
) -> list[DocumentProblem]:
    """Apply overrides to the trees (`workflow`, `infrastructure`, optionally `profiles`) in place; returns problems.

    Overrides of a document that is not in `trees` are ignored, because all commands accept the same overrides. `names`:
    those of sites, to suggest for an unknown path.
    """
    problems: list[DocumentProblem] = []
    for text in overrides:
        problem = _apply(trees, text, names=names)
        if problem is not None:
            problems.append(problem)
    return problems


def by_document(overrides: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The overrides of paths that a document has, and the others: of sites that differ, or wrong."""
    known = [_document(text.partition("=")[0].strip().split("."))[0] is not None for text in overrides]
    pairs = list(zip(overrides, known, strict=True))
    return [text for text, is_known in pairs if is_known], [text for text, is_known in pairs if not is_known]


def apply_multi_workflow_overrides(
    fleet: Tree, workflows: Mapping[str, Mapping[str, Tree]], overrides: Sequence[str]
) -> list[DocumentProblem]:
    """`apply_overrides` for several workflows: NAME.path=value changes the workflow NAME, other paths the fleet.

    `workflows`: workflow name -> document name -> tree.
    """
    problems: list[DocumentProblem] = []
    for text in overrides:
        name = max((name for name in workflows if text.strip().startswith(f"{name}.")), key=len, default=None)
        if name is None:
            problem = _apply_to_fleet(fleet, [*workflows], text)
        else:
            problem = _apply(workflows[name], text, within=name)
        if problem is not None:
            problems.append(problem)
    return problems


def _apply_to_fleet(fleet: Tree, workflows: Sequence[str], text: str) -> DocumentProblem | None:
    path = text.partition("=")[0].strip()
    document, _ = _document(path.split("."))
    if document in ("workflow", "profiles"):
        hint = f"write --set {workflows[0]}.{text}; workflows: {', '.join(workflows)}"
        return _problem(option_text(text), path, "the project has several workflows: name one", hint)
    return _apply({"infrastructure": fleet}, text, names=workflows)


def apply_override(tree: Tree, text: str, example: str) -> DocumentProblem | None:
    """Apply the override `text` to a single document in place; returns the problem with it, or None.

    `example`: a valid option, for the message.
    """
    option, (path, equals, value_text) = option_text(text), text.partition("=")
    if not equals or not path.strip():
        return DocumentProblem(option, None, None, "", "not of the form path=value", f"write --set {example}")
    read = read_text(value_text, option)
    if read.problems and value_text.strip() not in NULL_TEXTS:
        return _problem(option, path, f"the value is not YAML: {read.problems[0].message}", read.problems[0].hint)
    if not isinstance(tree.data, dict):
        return None
    return _assign(tree, path.strip().split("."), read.data, option, path)


def last_of_each_path(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides without those that a later one of the same path replaces.

    A removal stays: of an item of a list, the next one moves to its path.
    """
    last = {text.partition("=")[0].strip(): index for index, text in enumerate(overrides)}
    return tuple(
        text
        for index, text in enumerate(overrides)
        if last[text.partition("=")[0].strip()] == index or text.partition("=")[2].strip() in NULL_TEXTS
    )


def override_options(overrides: Sequence[str]) -> str:
    """The `--set` options as text for a command line, with a space before each."""
    return "".join(f" --set {shlex.quote(text)}" for text in overrides)


def option_text(text: str) -> str:
    """The option as given, shortened for messages."""
    return f"--set {text if len(text) <= 200 else text[:197] + '...'}"


def _apply(
    trees: Mapping[str, Tree], text: str, *, within: str = "", names: Sequence[str] = ()
) -> DocumentProblem | None:
    """Apply one override to the document that its path addresses; returns the problem with it, or None.

    `within`: the workflow named before the path. `names`: workflows or sites to suggest for an unknown path.
    """
    option = option_text(text)
    path, equals, value_text = text.partition("=")
    if not equals or not path.strip():
        return DocumentProblem(option, None, None, "", "not of the form path=value", "write --set slo.accuracy=57")
    parts = path.strip().removeprefix(f"{within}." if within else "").split(".")
    document, parts = _document(parts)
    if within and document == "infrastructure":
        hint = "remove the workflow's name"
        return _problem(option, path, "the fleet is shared by all workflows", hint)
    if document is None:
        known = [*names, *(key for keys in SECTIONS.values() for key in keys)]
        hint = did_you_mean(parts[0], known) or (f"known names: {', '.join(names[:MOST_NAMED])}" if names else "")
        return _problem(option, path, f"unknown path: no document has {quoted(parts[0])}", hint)
    read = read_text(value_text, option)
    if read.problems and value_text.strip() not in NULL_TEXTS:
        return _problem(option, path, f"the value is not YAML: {read.problems[0].message}", read.problems[0].hint)
    if document not in trees or not isinstance(trees[document].data, dict):
        return None
    return _assign(trees[document], parts, read.data, option, path)


def _document(parts: list[str]) -> tuple[str | None, list[str]]:
    if parts[0] in SECTIONS and len(parts) > 1:
        return parts[0], parts[1:]
    for document, keys in SECTIONS.items():
        if parts[0] in keys:
            return document, parts
    return None, parts


def _problem(option: str, path: str, message: str, hint: str) -> DocumentProblem:
    return DocumentProblem(option, None, None, path.strip(), message, hint)


def _assign(tree: Tree, parts: list[str], value: Any, option: str, text: str) -> DocumentProblem | None:
    """Set the value at the path `parts`; returns the problem with the option `text`, or None.

    Missing parents are created only for optional maps (`_OPTIONAL_MAPS`).
    """
    holder: Any = tree.data
    at: DocPath = ()
    while True:
        key, rest = _step(holder, parts)
        last = not rest
        if isinstance(holder, list):
            is_new = last and value is not None  # such an item may be added behind the last one
            if not isinstance(key, int) or key >= len(holder) + is_new:
                hint = f"write an index from 0 to {len(holder) - 1}; " if holder else "the list is empty; "
                hint += f"{dotted((*at, len(holder)))}=... adds an item"
                return _problem(option, text, f"unknown path: {dotted(at)} has no item {quoted(str(key))}", hint)
        elif not isinstance(holder, dict):
            return _problem(
                option, text, f"unknown path: {dotted(at)} is {describe_value(holder)}", "set it as a whole"
            )
        elif not last and key not in holder:
            if (*at, key) not in _OPTIONAL_MAPS | _OPTIONAL_LISTS:
                where = f"{dotted(at)} has" if at else "the document has"
                hint = did_you_mean(str(key), list(holder)) or f"known keys: {', '.join(list(holder)[:12])}"
                return _problem(option, text, f"unknown path: {where} no {quoted(str(key))}", hint)
            holder[key] = [] if (*at, key) in _OPTIONAL_LISTS else {}
            tree.keys[*at, key] = tree.values[*at, key] = Mark(option)
        at = (*at, key)
        if last:
            for other in LONG_FORMS.get(at, ()):
                holder.pop(other, None)
                _forget_marks(tree, (*at[:-1], other))
            _set_value(tree, holder, at, value, option)
            return None
        holder, parts = holder[key], rest


def _step(holder: Any, parts: list[str]) -> tuple[str | int, list[str]]:
    """Split a path into its first key and the rest. Names may have dots, so the longest key in `holder` is chosen."""
    if isinstance(holder, list):
        number = parts[0]
        return (int(number) if number.isascii() and number.isdigit() and len(number) < 9 else number), parts[1:]
    if isinstance(holder, dict):
        for length in range(len(parts), 1, -1):
            joined = ".".join(parts[:length])
            if joined in holder:
                return joined, parts[length:]
    return parts[0], parts[1:]


def _set_value(tree: Tree, holder: Any, path: DocPath, value: Any, option: str) -> None:
    key = path[-1]
    if isinstance(holder, list):
        _set_item(tree, holder, path, value, option)
        return
    old = holder.get(key)
    _forget_marks(tree, path)
    tree.keys[path] = Mark(option)  # also for a removed key: that it is missing is then reported at the option
    if value is None:
        holder.pop(key, None)
        return
    if key == "variants" and isinstance(old, dict) and isinstance(value, list):
        value = {
            name: old.get(name, {}) for name in value if isinstance(name, str)
        }  # keep the specifications of the remaining variants
    holder[key] = value
    tree.values[path] = Mark(option)


def _set_item(tree: Tree, items: list[Any], path: DocPath, value: Any, option: str) -> None:
    """Replace, add (at the index after the last) or remove (None) an item of a list; later items keep their marks."""
    index = int(path[-1])
    _forget_marks(tree, path)
    if value is not None:
        items[index : index + 1] = [value]
        tree.values[path] = Mark(option)
        return
    del items[index]
    depth = len(path) - 1
    for marks in (tree.keys, tree.values):
        behind = [known for known in marks if known[:depth] == path[:depth] and len(known) > depth]
        moved = {known: marks.pop(known) for known in behind if int(known[depth]) > index}
        marks.update({(*path[:depth], int(known[depth]) - 1, *known[depth + 1 :]): moved[known] for known in moved})
    tree.values[path[:-1]] = Mark(option)


def _forget_marks(tree: Tree, path: DocPath) -> None:
    for marks in (tree.keys, tree.values):
        for known in [known for known in marks if known[: len(path)] == path]:
            del marks[known]
