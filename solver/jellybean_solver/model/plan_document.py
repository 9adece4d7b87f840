"""A plan as plain JSON values and back.

The document is what agents, Kubernetes and the simulator read; its hash is over the canonical JSON of all the rest, so
two equal plans have one name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from jellybean_solver.errors import JellyBeanError
from jellybean_solver.model.plan import PLAN_VERSION, Plan

Document = dict[str, Any]


class PlanDocumentError(JellyBeanError):
    """The document is no plan, is of another version, or was changed after it was written."""


def to_document(plan: Plan) -> Document:
    """JSON values: `kind`, `version`, `hash`, then the fields of `Plan`."""
    body = encode(_decode(Plan, encode(plan)))  # a figure given as the integer 10 is the float 10.0, also to the hash
    return {"kind": "Plan", "version": PLAN_VERSION, "hash": content_hash(body), **body}


def from_document(document: Mapping[str, Any]) -> Plan:
    """The plan of a document. PlanDocumentError unless kind, version and hash are right."""
    if document.get("kind") != "Plan":
        raise PlanDocumentError(f"not a plan: kind is {document.get('kind')!r}")
    if document.get("version") != PLAN_VERSION:
        raise PlanDocumentError(
            f"plan version {document.get('version')!r}; this JellyBean reads {PLAN_VERSION}: plan again"
        )
    body = {key: value for key, value in document.items() if key not in {"kind", "version", "hash"}}
    if content_hash(body) != document.get("hash"):
        raise PlanDocumentError("the plan's content does not match its hash: it was changed by hand; plan again")
    try:
        plan = _decode(Plan, body)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanDocumentError(f"not a plan: {error}") from error
    return typing.cast(Plan, plan)


def content_hash(body: Mapping[str, Any]) -> str:
    """sha256 (hex) of the canonical JSON of everything but kind, version and hash."""
    kept = {key: value for key, value in body.items() if key not in {"kind", "version", "hash"}}
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def encode(value: Any) -> Any:
    """Plain JSON values of dataclasses, mappings, sequences and enums, recursively."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if not _goes_unsaid(f, value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def _goes_unsaid(field: dataclasses.Field[Any], value: Any) -> bool:
    """Fields that came later are left out at their default, so that plans from before keep their hash."""
    return "said" in field.metadata and bool(getattr(value, field.name) == field.default)


def _decode(kind: Any, value: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _decode(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return tuple(_decode(args[0], item) for item in value)
        return tuple(_decode(a, item) for a, item in zip(args, value, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {_decode(args[0], key): _decode(args[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})
    return kind(value)
