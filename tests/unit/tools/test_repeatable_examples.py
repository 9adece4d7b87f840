"""The values that a derandomised test draws do not depend on the modules that are imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def _drawn() -> list[float | str]:
    values: list[float | str] = []

    @settings(derandomize=True, max_examples=200, database=None)
    @given(st.floats(min_value=0, max_value=1e15) | st.text(max_size=8))
    def draw(value: float | str) -> None:
        values.append(value)

    draw()
    return values


@pytest.mark.skipif(settings().max_examples >= 1000, reason="nightly: examples are random")
def test_modules_that_are_imported_later_change_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _drawn()
    numbers = ", ".join(f"{number}.25, 'text{number}'" for number in range(70_000, 70_200))
    (tmp_path / "unusual_constants.py").write_text(f"VALUES = ({numbers})\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("unusual_constants")
    try:
        after = _drawn()
    finally:
        del sys.modules["unusual_constants"]
    assert after == before
    assert len(set(map(str, after))) > 50
