"""Writes values as YAML in one line (flow style), such that `reader` reads the same value back.

Text stays plain where no parser of YAML 1.1 or 1.2 could take it for something else; hints quote documents this way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from jellybean.documents.schema.reader import scalar
from jellybean.documents.schema.todos import PLACEHOLDER

_PLAIN = re.compile(r"[^\W\d_][\w./-]*")
_YAML_1_1_WORDS = frozenset({"yes", "no", "on", "off", "y", "n"})


def flow_style(value: Any) -> str:
    """A value of a document (null, bool, number, text, list or map with text as keys) as YAML in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{flow_style(str(key))}: {flow_style(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow_style, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' * (value < 0)}.inf"
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    """Text, in quotes if YAML would read it as something else; escaped if it has characters that are not printable."""
    is_word = scalar(text) == text and text.lower() not in _YAML_1_1_WORDS and text != PLACEHOLDER
    if is_word and _PLAIN.fullmatch(text):
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
