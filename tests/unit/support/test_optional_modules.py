"""Unit and property tests run without torch: the newest Python versions get no wheel of it for months."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.paths import ROOT


def _imports_of_torch(text: str) -> Iterator[int]:
    """Lines in which a module itself imports torch: not those of texts in it, or of its functions."""
    for node in ast.parse(text).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.partition(".")[0] == "torch" for name in names):
            yield node.lineno


def test_a_module_of_tests_that_imports_torch_is_skipped_without_it() -> None:
    unskipped = []
    for folder in ("unit", "property", "fuzz"):
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            text = path.read_text(encoding="utf-8")
            if "\nimport torch" in text or "\nfrom torch" in text:
                lines = text.splitlines()
                first = min(_imports_of_torch(text), default=len(lines))
                if not any('pytest.importorskip("torch' in line for line in lines[: first - 1]):
                    unskipped += [f"{path.relative_to(ROOT)}:{first}"] if first < len(lines) else []
    assert unskipped == []
