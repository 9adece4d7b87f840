"""Validate a parsed document with pydantic and turn its errors into located problems in plain English.

The valid part of a document with errors is still returned (`CheckedDocument`), so that checks across documents run and
all problems are reported at once. Broken entries are kept by path and never reported twice.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Tag, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from jellybean.documents.schema.fields import FROM_DOCUMENT, DocumentModel
from jellybean.documents.schema.reader import DocPath, Tree, scalar
from jellybean.quantities import InvalidValueError, describe_value, did_you_mean, nearest_name, quoted

Document = TypeVar("Document", bound=DocumentModel)

# Top-level key -> depth of its entries, which are dropped as a whole if they have an error; 1 for all other keys.
_ENTRY_DEPTH = {"sources": 2, "operators": 2, "workers": 2}
_MOST_NAMED = 4
_CLEARLY = (
    0.15  # difference of two similarities (0 to 1) from which on the more similar key is meant, though it is used
)
_KINDS = {"Workflow": "workflow.yaml", "Infrastructure": "infrastructure.yaml", "Profiles": "profiles.yaml"}
_PLACEHOLDERS: dict[str, Any] = {"name": "unnamed", "tiers": [], "sources": {}, "operators": {}, "workers": {}}


@dataclass
class CheckedDocument(Generic[Document]):
    """The valid part of a document and the paths of its broken entries. `document` is None if no part is valid."""

    tree: Tree
    document: Document | None
    broken: frozenset[DocPath] = field(default_factory=frozenset)

    @property
    def valid(self) -> bool:
        """True if the document has no problems so far."""
        return self.document is not None and not self.tree.problems

    def names(self, section: str) -> tuple[str, ...]:
        """Names declared in a section, including those of broken entries."""
        declared = getattr(self.document, section) if self.document is not None else {}
        return tuple(
            dict.fromkeys([*declared, *(str(path[1]) for path in self.broken if path[0] == section and path[1:])])
        )

    def is_broken(self, *path: str) -> bool:
        """True if this entry or the whole document is broken, so that it must not be checked further."""
        return self.document is None or any(path[: len(item)] == item for item in self.broken)


def validate_tree(model: type[Document], tree: Tree) -> CheckedDocument[Document]:
    """Validate a parsed document against `model`; problems are added to the tree."""
    if tree.data is None or not _is_document(model, tree):
        return CheckedDocument(tree, None)
    without_kind = "kind" not in tree.data and not model.model_fields["kind"].is_required()
    empty = {path for path in _empty(tree.data, ()) if not _is_free(model, path)}
    for path in empty - tree.unread:
        tree.add(path, "is empty", "write a value or remove the key", key=True)
    broken = {_entry(path) for path in empty}
    document, misspelt = None, set[DocPath]()
    try:
        document = _validate(model, tree.data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        misspelt = _report(model, tree, errors, empty)
        for details in errors:
            path, _ = _locate(tree.data, details["loc"])
            broken.add(_entry(path) or ((str(details["loc"][0]),) if details["loc"] else ()))
        broken |= {_entry(path) for path in misspelt}
    if without_kind and ("kind",) not in misspelt:
        _report_missing(model, tree, (), "kind")
    return CheckedDocument(tree, document or _valid_part(model, tree.data, broken), frozenset(broken))


def plain_message(details: ErrorDetails) -> str:
    """What is wrong, in words: of our own errors without the prefix that pydantic puts before them."""
    cause = details.get("ctx", {}).get("error")
    return details["msg"] if cause is None else str(cause)


class FieldReader:
    """Reads single values of a model's field, as tables have them, with the syntax and the errors of the documents."""

    def __init__(self, model: type[BaseModel], key: str) -> None:
        """`key`: the field as documents write it."""
        fields = model.model_fields.items()
        self.name, info = next((name, info) for name, info in fields if (info.alias or name) == key)
        annotation: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def read(self, text: str) -> Any:
        """The value of an unquoted scalar. InvalidValueError with message and hint if it is not one of the field."""
        try:
            return self._adapter.validate_python(scalar(text), strict=True, context=FROM_DOCUMENT)
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
        context = details.get("ctx", {})
        if isinstance(cause := context.get("error"), InvalidValueError):
            raise cause
        raise InvalidValueError(*_describe_error(details["type"], details["input"], context))


def _is_document(model: type[BaseModel], tree: Tree) -> bool:
    """True if the tree is a map and its `kind`, if given, is that of `model`; otherwise the problem is reported."""
    if not isinstance(tree.data, dict):
        tree.add(
            (), f"{describe_value(tree.data)} is not a document", f"write a map that begins with kind: {_kind(model)}"
        )
        return False
    kind = tree.data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or kind == _kind(model):
        return True
    tree.add(
        ("kind",),
        f"this is a document of kind {kind}, but this file must be of kind {_kind(model)}",
        f"move it to {_KINDS[kind]}",
    )
    return False


def _report(model: type[BaseModel], tree: Tree, errors: list[ErrorDetails], empty: set[DocPath]) -> set[DocPath]:
    """Add pydantic's errors to the tree's problems, except for values at the paths `empty`.

    Returns the paths of required keys that were misspelt.
    """
    unknown: list[ErrorDetails] = []
    others: list[tuple[ErrorDetails, DocPath, bool]] = []
    for details in errors:
        path, key = _locate(tree.data, details["loc"])
        if any(path[: len(item)] == item for item in empty):
            continue
        if details["type"] == "extra_forbidden":
            unknown.append(details)
        else:
            others.append((details, path, key))
    misspelt = _report_unknown_keys(model, tree, unknown)
    for details, path, key in others:
        if details["type"] != "missing" or (*path, str(details["loc"][-1])) not in misspelt:
            _report_error(model, tree, details, path, key)
    return misspelt


def _validate(model: type[Document], data: Any) -> Document:
    return model.model_validate(data, context=FROM_DOCUMENT, by_alias=True, by_name=False)


def _kind(model: type[BaseModel]) -> str:
    return str(typing.get_args(model.model_fields["kind"].annotation)[0])


def _empty(value: Any, path: DocPath) -> Iterator[DocPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if item is None:
            yield (*path, key)
        else:
            yield from _empty(item, (*path, key))


def _is_free(model: type[DocumentModel], path: DocPath) -> bool:
    """True inside content in which null is a value."""
    return any(
        len(path) > len(free) and all(wanted in ("*", part) for wanted, part in zip(free, path, strict=False))
        for free in model.free_paths
    )


def _entry(path: DocPath) -> DocPath:
    return path[: _ENTRY_DEPTH.get(str(path[0]), 1)] if path else ()


def _valid_part(model: type[Document], data: Mapping[str, Any], broken: set[DocPath]) -> Document | None:
    """The document without its broken entries; None if the remaining part does not validate either."""
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
    """Map pydantic's error location to a path in the document; the flag is True if the error is about the key.

    Short forms are expanded before validation, so a location may have steps that the document does not have.
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


def _report_unknown_keys(model: type[BaseModel], tree: Tree, errors: list[ErrorDetails]) -> set[DocPath]:
    """Report unknown keys; those of one map that resemble no known key share one problem.

    Returns the known keys that were misspelt, which must not be reported as missing as well.
    """
    misspelt: set[DocPath] = set()
    unrelated: dict[DocPath, tuple[list[str], list[str]]] = {}
    for details in errors:
        path, _ = _locate(tree.data, details["loc"])
        name, known = str(details["loc"][-1]), _keys(_type_at(model, details["loc"][:-1]))
        present = _at(tree.data, path[:-1])
        free = [item for item in known if item not in present] if isinstance(present, dict) else known
        near = nearest_name(name, free)
        if near is not None:
            misspelt.add((*path[:-1], near))
        used = [key for key in known if key not in free]
        meant = used if _is_clearly_nearer(name, nearest_name(name, used), near) else free
        if hint := did_you_mean(name, meant) or did_you_mean(name, known):
            tree.add(path, f"unknown key {name!r}", hint, key=True)
        else:
            unrelated.setdefault(path[:-1], ([], known))[0].append(name)
    for parent, (names, known) in unrelated.items():
        hint = f"known keys: {', '.join(known)}" if known else ""
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        words = ", ".join(repr(name) for name in names[:_MOST_NAMED])
        tree.add((*parent, names[0]), f"unknown key{'s' * (len(names) > 1)} {words}{more}", hint, key=True)
    return misspelt


def _is_clearly_nearer(name: str, one: str | None, other: str | None) -> bool:
    """True if a key resembles one known key much more than another."""
    alike = [0.0 if key is None else difflib.SequenceMatcher(None, name, key).ratio() for key in (one, other)]
    return alike[0] > alike[1] + _CLEARLY


def _report_missing(model: type[BaseModel], tree: Tree, path: DocPath, name: str) -> None:
    hint = f"write for example {name}: {_EXAMPLES[name]}" if name in _EXAMPLES else ""
    if name == "kind":
        hint = f"write kind: {_kind(model)}"
    tree.add((*path, name), f"missing key {name!r}", hint, key=True)


def _report_error(model: type[BaseModel], tree: Tree, details: ErrorDetails, path: DocPath, key: bool) -> None:
    kind, loc, value = details["type"], details["loc"], details["input"]
    context = details.get("ctx", {})
    if kind == "missing":
        _report_missing(model, tree, path, str(loc[-1]))
    elif isinstance(error := context.get("error"), InvalidValueError):
        if error.keys:
            tree.add_conflict(path, error.keys, error.message, error.hint)
        else:
            tree.add(path, error.message, error.hint, key=key)
    else:
        message, hint = _describe_error(kind, value, context)
        tree.add(path, message, hint, key=key)


def _describe_error(kind: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    if kind in {"literal_error", "enum"}:
        allowed = [item.strip(" '") for item in str(context["expected"]).replace(" or ", ",").split(",")]
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        return f"{describe_value(value)} is not one of {', '.join(allowed)}", near
    if kind in _BOUNDS:
        bounds = {name: f"{bound:g}" for name, bound in context.items()}
        return f"{_BOUNDS[kind].format(**bounds)}, not {_brief(value)}", ""
    if kind == "string_type" and _is_scalar(value):
        return f"{describe_value(value)} is not text", f"quote it: {str(value)!r}"
    if kind in {"tuple_type", "list_type"} and isinstance(value, str):
        return f"{describe_value(value)} is not a list", f"write [{value}]"
    if kind in _INTEGER_KINDS and isinstance(value, float) and abs(value) < _LARGEST_EXACT:
        nearest = dict.fromkeys((math.floor(value), math.ceil(value)))
        return f"{describe_value(value)} is {_INTEGER[0]}", f"write {' or '.join(map(str, nearest))}"
    wanted, hint = _WANTED.get(kind, (kind.replace("_", " "), ""))
    return f"{describe_value(value)} is {wanted}", hint


_BOUNDS = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
}
_MAP = ("not a map", "write `key: value` pairs")
_LIST = ("not a list", "write [a, b]")
_INTEGER = ("not an integer", "write for example 4")
_INTEGER_KINDS = ("int_type", "int_from_float", "int_parsing")
_LARGEST_EXACT = 2**53  # above, a float has no fraction
_NUMBER = ("not a finite number", "write for example 0.5")
_SHORT = ("empty", "add at least one entry")
_WANTED = {
    "string_type": ("not text", "write text"),
    "dict_type": _MAP,
    "model_type": _MAP,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "bool_type": ("neither true nor false", "write true or false"),
    **dict.fromkeys(_INTEGER_KINDS, _INTEGER),
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "too_short": _SHORT,
    "string_too_short": _SHORT,
}


def _brief(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)[:40]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | bool)


def _at(data: Any, path: DocPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _type_at(annotation: Any, loc: tuple[str | int, ...]) -> Any:
    """The type annotation of the field at pydantic's error location `loc`, starting from `annotation`."""
    for part in loc:
        if part == "[key]":
            continue
        if (member := _tagged(annotation, part)) is not None:
            annotation = member
            continue
        annotation = _bare(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {info.alias or name: info.annotation for name, info in annotation.model_fields.items()}
            annotation = fields.get(str(part))
        else:
            args = typing.get_args(annotation)
            annotation = args[1] if typing.get_origin(annotation) is dict else args[0] if args else None
    return _bare(annotation)


def _tagged(annotation: Any, tag: str | int) -> Any:
    """The member of a discriminated union with this tag; None if there is none."""
    union = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    members = typing.get_args(union) if typing.get_origin(union) in (types.UnionType, typing.Union) else ()
    return next((member for member in members if Tag(str(tag)) in getattr(member, "__metadata__", ())), None)


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
    "ways": "2",
}
