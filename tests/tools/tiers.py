"""Leaves modules uncollected of which `-m` selects no test: importing what slow tests need takes half a minute.

Also refuses a test of the first tier that must run alone. A plug-in of pytest.
"""

from __future__ import annotations

import re
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

_MODULE_MARKS = re.compile(r"^pytestmark = (?:\[([^\]]*)\]|(.*))$", re.MULTILINE)
_MARK = re.compile(r"pytest\.mark\.(\w+)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True if no test of a module can be selected, whatever marks its tests have beside those of the module."""
    expression = config.getoption("markexpr")
    if not expression or not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    of_module = marks_of_module(collection_path.read_text(encoding="utf-8"))
    return True if of_module and not may_select(expression, of_module, _known_marks(config)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that must be alone is slow: `make test` runs all of its tests side by side."""
    for item in items:
        if item.get_closest_marker("alone") and not any(map(item.get_closest_marker, ("slow", "nightly"))):
            raise pytest.UsageError(f"{item.nodeid} has the marker `alone`: give it `slow` or `nightly` too")


def marks_of_module(text: str) -> frozenset[str]:
    """Names of the marks in `pytestmark = ...`, which all tests of the module have."""
    return frozenset(
        chain.from_iterable(_MARK.findall(text[found.start() : found.end()]) for found in _MODULE_MARKS.finditer(text))
    )


def _known_marks(config: pytest.Config) -> list[str]:
    return [str(line).partition(":")[0] for line in config.getini("markers") if "(" not in str(line).partition(":")[0]]


def may_select(expression: str, of_module: frozenset[str], known: list[str]) -> bool:
    """True if the expression holds for the module's marks and some others of those that it mentions."""
    compiled = Expression.compile(expression)
    mentioned = [name for name in known if re.search(rf"\b{name}\b", expression)]
    subsets = chain.from_iterable(combinations(mentioned, size) for size in range(len(mentioned) + 1))
    return any(
        compiled.evaluate(lambda name, /, _marks=of_module | set(others), **_: name in _marks) for others in subsets
    )
