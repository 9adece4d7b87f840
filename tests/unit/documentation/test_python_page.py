"""Every function in the table of docs/python.md exists under the name that it has there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[3] / "docs/python.md").read_text(encoding="utf-8")


def find(name: str) -> object:
    """The object of a dotted name: the longest prefix that is a module, then attributes."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_every_name_of_the_table_can_be_called() -> None:
    names = re.findall(r"`(jellybean[\w.]+)\(", TEXT)
    assert len(names) > 12
    for name in names:
        assert callable(find(name)), name
