"""The types of a dataclass's fields, for one that was read from JSON that somebody else may have written."""

from __future__ import annotations

import dataclasses
from typing import Any

_PLAIN = {"str": str, "int": int, "bool": bool}  # by their annotations


def has_types(entry: Any) -> bool:
    """True if the plain fields of an entry have their types, and no text has a NUL, which no path may have."""
    for field in dataclasses.fields(entry):
        value, kind = getattr(entry, field.name), _PLAIN.get(str(field.type))
        if kind is not None and type(value) is not kind:
            return False
        if isinstance(value, str) and "\0" in value:
            return False
    return True
