"""`--set path=value`: one value of a document changed from the command line.

Paths run over the three documents as one: the first key says which document is meant (`operators` is the workflow's),
and `workflow.`, `infrastructure.` or `profiles.` may stand before it. Values are read as YAML; `null` takes a key out.
Problems that an override causes are told at the override.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jellybean.documents.schema.reader import DocPath, Mark, Tree, dotted, read_text
from jellybean.documents.schema.units import close, describe, shown
from jellybean.errors import DocumentProblem

SECTIONS = {
    "workflow": ("kind", "name", "description", "sources", "operators", "labels", "metric", "slo"),
    "infrastructure": ("kind", "description", "tiers", "sites", "workers", "links", "limits", "migration"),
    "profiles": ("machine", "hop", "accuracy", "kind", "operators"),
}
_NOTHING = {"", "null", "~"}
_OPTIONAL_MAPS = {
    *(("slo",), ("limits",), ("migration",), ("machine",), ("sites",)),
    *(("lr_schedule",), ("checkpoint",), ("export",)),  # of training.yaml
}


def apply_overrides(trees: Mapping[str, Tree], overrides: Sequence[str]) -> list[DocumentProblem]:
    """Change the trees (`workflow`, `infrastructure`, perhaps `profiles`) in place; returns what is wrong with options.

    Overrides of a document that was not asked for are left alone: every command takes every override.
    """
    problems: list[DocumentProblem] = []
    for text in overrides:
        problem = _apply(trees, text)
        if problem is not None:
            problems.append(problem)
    return problems


def apply_overrides_of(
    fleet: Tree, workflows: Mapping[str, Mapping[str, Tree]], overrides: Sequence[str]
) -> list[DocumentProblem]:
    """As `apply_overrides` where workflows share a fleet: NAME.path=value is of one of them, all else of the fleet."""
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
        return _problem(option_text(text), path, "which workflow's? there are several", hint)
    return _apply({"infrastructure": fleet}, text, names=workflows)


def apply_override(tree: Tree, text: str, example: str) -> DocumentProblem | None:
    """Change a document that stands by itself; returns what is wrong with the option."""
    option, (path, equals, value_text) = option_text(text), text.partition("=")
    if not equals or not path.strip():
        return DocumentProblem(option, None, None, "", "there is no path=value", f"write --set {example}")
    read = read_text(value_text, option)
    if read.problems and value_text.strip() not in _NOTHING:
        return _problem(option, path, f"the value is not YAML: {read.problems[0].message}", read.problems[0].hint)
    if not isinstance(tree.data, dict):
        return None
    return _assign(tree, path.strip().split("."), read.data, option, path)


def option_text(text: str) -> str:
    """The option as it was given, for messages."""
    return f"--set {text if len(text) <= 200 else text[:197] + '...'}"


def _apply(
    trees: Mapping[str, Tree], text: str, *, within: str = "", names: Sequence[str] = ()
) -> DocumentProblem | None:
    """`within`: the workflow whose name stands before the path; `names`: of workflows that might have been meant."""
    option = option_text(text)
    path, equals, value_text = text.partition("=")
    if not equals or not path.strip():
        return DocumentProblem(option, None, None, "", "there is no path=value", "write --set slo.accuracy=57")
    parts = path.strip().removeprefix(f"{within}." if within else "").split(".")
    document, parts = _document(parts)
    if within and document == "infrastructure":
        hint = "leave the workflow's name out"
        return _problem(option, path, "the fleet is one of all workflows", hint)
    if document is None:
        known = [*names, *(key for keys in SECTIONS.values() for key in keys)]
        return _problem(option, path, f"unknown path: no document has {shown(parts[0])}", close(parts[0], known))
    read = read_text(value_text, option)
    if read.problems and value_text.strip() not in _NOTHING:
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
    """Walk to the path's parent, then set its last key. Only keys that a document may leave out are made on the way."""
    holder: Any = tree.data
    at: DocPath = ()
    while True:
        key, rest = _step(holder, parts)
        last = not rest
        if isinstance(holder, list):
            if not isinstance(key, int) or key >= len(holder):
                hint = f"indices run from 0 to {len(holder) - 1}" if holder else "the list is empty"
                return _problem(option, text, f"unknown path: {dotted(at)} has no item {shown(str(key))}", hint)
        elif not isinstance(holder, dict):
            return _problem(option, text, f"unknown path: {dotted(at)} is {describe(holder)}", "set it as a whole")
        elif not last and key not in holder:
            if (*at, key) not in _OPTIONAL_MAPS:
                where = f"{dotted(at)} has" if at else "the document has"
                hint = close(str(key), list(holder)) or f"there are: {', '.join(list(holder)[:12])}"
                return _problem(option, text, f"unknown path: {where} no {shown(str(key))}", hint)
            holder[key] = {}
            tree.keys[*at, key] = tree.values[*at, key] = Mark(option)
        at = (*at, key)
        if last:
            _place(tree, holder, at, value, option)
            return None
        holder, parts = holder[key], rest


def _step(holder: Any, parts: list[str]) -> tuple[str | int, list[str]]:
    """The next key and what remains. Names may hold dots, so the longest key that exists wins."""
    if isinstance(holder, list):
        number = parts[0]
        return (int(number) if number.isascii() and number.isdigit() and len(number) < 9 else number), parts[1:]
    if isinstance(holder, dict):
        for length in range(len(parts), 1, -1):
            joined = ".".join(parts[:length])
            if joined in holder:
                return joined, parts[length:]
    return parts[0], parts[1:]


def _place(tree: Tree, holder: Any, path: DocPath, value: Any, option: str) -> None:
    key = path[-1]
    old = holder.get(key) if isinstance(holder, dict) else holder[key]
    for marks in (tree.keys, tree.values):
        for known in [known for known in marks if known[: len(path)] == path]:
            del marks[known]
    if isinstance(key, str):
        tree.keys[path] = Mark(option)  # stays when the key goes: if it is missed, the override is to blame
    if value is None and isinstance(holder, dict):
        holder.pop(key, None)
        return
    if key == "variants" and isinstance(old, dict) and isinstance(value, list):
        value = {name: old.get(name, {}) for name in value if isinstance(name, str)}  # fewer variants, same models
    holder[key] = value
    tree.values[path] = Mark(option)
