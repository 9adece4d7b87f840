"""Writes plain values as YAML: block style, keys in the given order, deterministic.

Written by hand for speed: a general emitter takes seconds for the thousands of objects of a large plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # any YAML parser reads it as text, except the words below
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def to_yaml(value: Mapping[str, Any]) -> str:
    """One document, without a `---` marker."""
    return "".join(_mapping(value, ""))


def yaml_documents(values: Iterable[Mapping[str, Any]]) -> str:
    """Several documents, each after a `---` marker."""
    return "".join(f"---\n{to_yaml(value)}" for value in values)


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        yield f"{indent}{_scalar(key)}:"
        yield from _after_key(item, indent)


def _after_key(item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, Mapping) and item:
        yield "\n"
        yield from _mapping(item, indent + "  ")
    elif isinstance(item, list | tuple) and item:
        yield "\n"
        yield from _sequence(item, indent)
    elif isinstance(item, str) and _is_block(item):
        yield " |\n"
        yield from (f"{indent}  {line}\n" if line else "\n" for line in item[:-1].split("\n"))
    else:
        yield f" {_scalar(item)}\n"


def _sequence(items: Iterable[Any], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Mapping) and item:
            lines = "".join(_mapping(item, indent + "  "))
            yield f"{indent}- {lines[len(indent) + 2 :]}"
        elif isinstance(item, list | tuple) and item:
            raise TypeError("a list in a list: no Kubernetes object has one")
        else:
            yield f"{indent}- {_scalar(item)}\n"


def _is_block(text: str) -> bool:
    """True if the text is best written, and reads back equal, as a literal block."""
    return (
        "\n" in text[:-1]
        and text.endswith("\n")
        and not text.startswith((" ", "\n"))
        and not text.endswith("\n\n")
        and all(character == "\n" or character.isprintable() for character in text)
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in _quoted(value))
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
