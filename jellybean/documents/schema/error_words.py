"""From a tree to a model: pydantic's errors become problems with places and plain words.

When a document has errors, its sound parts are still handed on (`Checked`), so that checks across documents run and
every problem is told at once. What is broken is known by name and never reported a second time.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jellybean.documents.schema.fields import FROM_DOCUMENT, Strict
from jellybean.documents.schema.reader import DocPath, Tree
from jellybean.documents.schema.units import UnitError, close, describe, nearest, shown

Model = TypeVar("Model", bound=Strict)

# How deep the entries lie that are dropped as a whole when they are broken; 1 for all other keys.
_ENTRY_DEPTH = {"sources": 2, "operators": 2, "workers": 2}
_MOST_NAMED = 4
_KINDS = {"Workflow": "workflow.yaml", "Infrastructure": "infrastructure.yaml", "Profiles": "profiles.yaml"}
_PLACEHOLDERS: dict[str, Any] = {"name": "unnamed", "tiers": [], "sources": {}, "operators": {}, "workers": {}}


@dataclass
class Checked(Generic[Model]):
    """A document's sound part, and the paths of its entries that are not. `document` is None when nothing is sound."""

    tree: Tree
    document: Model | None
    broken: frozenset[DocPath] = field(default_factory=frozenset)

    @property
    def sound(self) -> bool:
        """Whether the document is complete and without problems so far."""
        return self.document is not None and not self.tree.problems

    def names(self, section: str) -> tuple[str, ...]:
        """Names declared in a section, broken ones included."""
        declared = getattr(self.document, section) if self.document is not None else {}
        return tuple(
            dict.fromkeys([*declared, *(str(path[1]) for path in self.broken if path[0] == section and path[1:])])
        )

    def unknown(self, *path: str) -> bool:
        """Whether nothing can be said about this entry, because it or the document is broken."""
        return self.document is None or any(path[: len(item)] == item for item in self.broken)


def check_tree(model: type[Model], tree: Tree) -> Checked[Model]:
    """Validate a tree that could be read. Problems are added to the tree."""
    if tree.data is None or not _is_document(model, tree):
        return Checked(tree, None)
    without_kind = "kind" not in tree.data and not model.model_fields["kind"].is_required()
    empty = set(_empty(tree.data, ()))
    for path in empty - tree.unread:
        tree.add(path, "is empty", "write a value or remove the key", key=True)
    broken = {_entry(path) for path in empty}
    document, meant = None, set[DocPath]()
    try:
        document = _validate(model, tree.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        meant = _tell(model, tree, found, empty)
        for details in found:
            path, _ = _locate(tree.data, details["loc"])
            broken.add(_entry(path) or ((str(details["loc"][0]),) if details["loc"] else ()))
        broken |= {_entry(path) for path in meant}
    if without_kind and ("kind",) not in meant:
        _missing(model, tree, (), "kind")
    return Checked(tree, document or _rest(model, tree.data, broken), frozenset(broken))


def _is_document(model: type[BaseModel], tree: Tree) -> bool:
    """Whether it is worth a look key by key: a map that does not say that it is another document."""
    if not isinstance(tree.data, dict):
        tree.add((), f"{describe(tree.data)} is no document", f"write a map that begins with kind: {_kind(model)}")
        return False
    kind = tree.data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or kind == _kind(model):
        return True
    tree.add(
        ("kind",), f"this is a document of kind {kind}; here stands the {_kind(model)}", f"put it into {_KINDS[kind]}"
    )
    return False


def _tell(model: type[BaseModel], tree: Tree, found: list[ErrorDetails], empty: set[DocPath]) -> set[DocPath]:
    """Add pydantic's errors as problems, but none of what is empty; returns absent keys that were misspelt."""
    strange: list[ErrorDetails] = []
    rest: list[tuple[ErrorDetails, DocPath, bool]] = []
    for details in found:
        path, key = _locate(tree.data, details["loc"])
        if any(path[: len(item)] == item for item in empty):
            continue
        if details["type"] == "extra_forbidden":
            strange.append(details)
        else:
            rest.append((details, path, key))
    meant = _unknown_keys(model, tree, strange)
    for details, path, key in rest:
        if details["type"] != "missing" or (*path, str(details["loc"][-1])) not in meant:
            _explain(model, tree, details, path, key)
    return meant


def _validate(model: type[Model], data: Any) -> Model:
    return model.model_validate(data, context=FROM_DOCUMENT, by_alias=True, by_name=False)


def _kind(model: type[BaseModel]) -> str:
    return str(typing.get_args(model.model_fields["kind"].annotation)[0])


def _empty(value: Any, path: DocPath) -> Iterator[DocPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if item is None and path[:1] != ("machine",):
            yield (*path, key)
        else:
            yield from _empty(item, (*path, key))


def _entry(path: DocPath) -> DocPath:
    return path[: _ENTRY_DEPTH.get(str(path[0]), 1)] if path else ()


def _rest(model: type[Model], data: Mapping[str, Any], broken: set[DocPath]) -> Model | None:
    """The document without its broken entries."""
    if () in broken:
        return None
    rest: dict[str, Any] = {}
    for key, value in data.items():
        if (key,) in broken:
            continue
        if isinstance(value, dict) and _ENTRY_DEPTH.get(key) == 2:
            rest[key] = {name: item for name, item in value.items() if (key, name) not in broken}
        else:
            rest[key] = value
    rest["kind"] = _kind(model)
    for key, field_info in model.model_fields.items():
        if field_info.is_required():
            rest.setdefault(key, _PLACEHOLDERS.get(key))
    try:
        context = {**FROM_DOCUMENT, "partial": True}
        return model.model_validate(rest, context=context, by_alias=True, by_name=False)
    except ValidationError:
        return None


def _locate(data: Any, loc: tuple[str | int, ...]) -> tuple[DocPath, bool]:
    """The part of pydantic's location that stands in the document, and whether its key is meant.

    Short forms are written out before validation, so a location may hold steps that the document does not have.
    """
    path: list[str | int] = []
    key = False
    for part in loc:
        if part == "[key]":
            key = True
        elif isinstance(data, dict) and str(part) in data:
            data = data[str(part)]
            path.append(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(part)
    return tuple(path), key


def _unknown_keys(model: type[BaseModel], tree: Tree, found: list[ErrorDetails]) -> set[DocPath]:
    """Tell unknown keys, those of one map that are near to none together.

    Returns the absent keys that were meant: they are neither missing nor left to their defaults.
    """
    meant: set[DocPath] = set()
    strange: dict[DocPath, tuple[list[str], list[str]]] = {}
    for details in found:
        path, _ = _locate(tree.data, details["loc"])
        name, known = str(details["loc"][-1]), _keys(_type_at(model, details["loc"][:-1]))
        present = _at(tree.data, path[:-1])
        free = [item for item in known if item not in present] if isinstance(present, dict) else known
        near = nearest(name, free)
        if near is not None:
            meant.add((*path[:-1], near))
        if hint := close(name, free) or close(name, known):
            tree.add(path, f"unknown key {name!r}", hint, key=True)
        else:
            strange.setdefault(path[:-1], ([], known))[0].append(name)
    for parent, (names, known) in strange.items():
        hint = f"known keys: {', '.join(known)}" if known else ""
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        words = ", ".join(repr(name) for name in names[:_MOST_NAMED])
        tree.add((*parent, names[0]), f"unknown key{'s' * (len(names) > 1)} {words}{more}", hint, key=True)
    return meant


def _missing(model: type[BaseModel], tree: Tree, path: DocPath, name: str) -> None:
    hint = f"write for example {name}: {_EXAMPLES[name]}" if name in _EXAMPLES else ""
    if name == "kind":
        hint = f"write kind: {_kind(model)}"
    tree.add((*path, name), f"missing key {name!r}", hint, key=True)


def _explain(model: type[BaseModel], tree: Tree, details: ErrorDetails, path: DocPath, key: bool) -> None:
    kind, loc, value = details["type"], details["loc"], details["input"]
    context = details.get("ctx", {})
    if kind == "missing":
        _missing(model, tree, path, str(loc[-1]))
    elif isinstance(error := context.get("error"), UnitError):
        tree.add(path, error.message, error.hint, key=key)
    else:
        message, hint = _plain_words(kind, value, context)
        tree.add(path, message, hint, key=key)


def _plain_words(kind: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    if kind in {"literal_error", "enum"}:
        allowed = [item.strip(" '") for item in str(context["expected"]).replace(" or ", ",").split(",")]
        near = close(value, allowed) if isinstance(value, str) else ""
        return f"{describe(value)} is not one of {', '.join(allowed)}", near
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind].format(**context)}, not {_brief(value)}", ""
    if kind == "string_type" and _is_scalar(value):
        return f"{describe(value)} is not text", f"quote it: {str(value)!r}"
    if kind in {"tuple_type", "list_type"} and isinstance(value, str):
        return f"{describe(value)} is not a list", f"write [{value}]"
    wanted, hint = _WANTED.get(kind, (kind.replace("_", " "), ""))
    return f"{describe(value)} is {wanted}", hint


_BOUNDS = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
_MAP = ("not a map", "write `key: value` pairs")
_LIST = ("not a list", "write [a, b]")
_WHOLE = ("not a whole number", "write for example 4")
_NUMBER = ("no finite number", "write for example 0.5")
_SHORT = ("empty", "at least one is needed")
_WANTED = {
    "string_type": ("not text", "write a text"),
    "dict_type": _MAP,
    "model_type": _MAP,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "bool_type": ("neither true nor false", "write true or false"),
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "too_short": _SHORT,
    "string_too_short": _SHORT,
}


def _brief(value: Any) -> str:
    return shown(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)[:40]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | bool)


def _at(data: Any, path: DocPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _type_at(annotation: Any, loc: tuple[str | int, ...]) -> Any:
    """The type that stands at a location of a model."""
    for part in loc:
        if part == "[key]":
            continue
        annotation = _bare(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {info.alias or name: info.annotation for name, info in annotation.model_fields.items()}
            annotation = fields.get(str(part))
        else:
            args = typing.get_args(annotation)
            annotation = args[1] if typing.get_origin(annotation) is dict else args[0] if args else None
    return _bare(annotation)


def _bare(annotation: Any) -> Any:
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (types.UnionType, typing.Union):
            annotation = next(item for item in typing.get_args(annotation) if item is not type(None))
        else:
            return annotation


def _keys(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [info.alias or name for name, info in annotation.model_fields.items()]
    return []


_EXAMPLES = {
    "tier": "edge",
    "rate": "40/s",
    "message": "794 KiB",
    "inputs": "[image]",
    "variants": "[small, large]",
    "from": "edge",
    "to": "cloud",
    "price": "0.096 USD/h",
    "tiers": "[edge, cloud]",
    "name": "my-workflow",
    "latency": "{edge-box: 8.1 ms}",
    "accuracy": "93.1",
    "selection": "{operator: variant}",
    "output": "93.1",
}
