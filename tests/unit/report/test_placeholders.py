"""Statements of SQL whose placeholders Python 3.14 still takes: numbered ones need a map, and 3.11 does not warn."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

NUMBERED = re.compile(r"[=(,] ?\?[0-9]|\?[0-9] IS\b")


@pytest.mark.parametrize("folder", ["jellybean", "edge_agent", "solver", "k8s", "benchmarks"])
def test_no_statement_numbers_its_placeholders(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for match in NUMBERED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
