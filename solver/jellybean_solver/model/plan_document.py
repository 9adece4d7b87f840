"""Conversion of a plan to a plan document (JSON values with a header as in `plan_format`) and back.

The document is all that agents, Kubernetes and the simulator read; the content hash in its header identifies the plan.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from jellybean_protos import plan_format
from jellybean_solver.errors import JellyBeanError
from jellybean_solver.model.plan import Plan

Document = dict[str, Any]

_SCALARS = frozenset({str, int, float, bool, type(None)})  # not subclasses, such as enums


class PlanDocumentError(JellyBeanError):
    """The document is not a plan, has an unsupported version, or does not match its content hash."""


def to_document(plan: Plan) -> Document:
    """The document of a plan: `kind`, `version`, `hash`, then the fields of `Plan`."""
    body = json_values(_from_json(Plan, json_values(plan)))  # 10 becomes 10.0, so that equal plans have equal hashes
    return plan_format.with_header(body)


def from_document(document: Mapping[str, Any]) -> Plan:
    """The plan of a document. PlanDocumentError if its kind, version, hash or fields are wrong."""
    try:
        body = plan_format.body_of(document, "this JellyBean")
    except plan_format.PlanFormatError as error:
        raise PlanDocumentError(str(error)) from error
    try:
        plan = _from_json(Plan, body)
    except plan_format.UNREADABLE as error:
        raise PlanDocumentError(f"not a plan: {error}") from error
    return typing.cast(Plan, plan)


def json_values(value: Any) -> Any:
    """The JSON value of a dataclass, mapping, sequence, enum or scalar, recursively.

    A dataclass with a method `to_dict` is converted by that method.
    """
    if type(value) in _SCALARS:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "to_dict"):
            return value.to_dict()
        return {
            f.name: json_values(getattr(value, f.name)) for f in dataclasses.fields(value) if not _omitted(f, value)
        }
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_values(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def _omitted(field: dataclasses.Field[Any], value: Any) -> bool:
    """True if a field is left out of the document: it was added within version 3 and has its default value.

    So plans that were written before the field existed keep their hash.
    """
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "said" in field.metadata and bool(getattr(value, field.name) == default)


def _from_json(kind: Any, value: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _from_json(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return tuple(_from_json(args[0], item) for item in value)
        return tuple(_from_json(a, item) for a, item in zip(args, value, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {_from_json(args[0], key): _from_json(args[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _types_of_fields(kind)
        return kind(**{name: _from_json(hints[name], item) for name, item in value.items()})
    return kind(value)


@functools.cache  # it takes most of the time of reading a plan of many workers
def _types_of_fields(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)
