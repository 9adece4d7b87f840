"""The plan file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.planning import write_plan_file


def test_a_plan_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match=r"plan\.json"):
        write_plan_file(target, {"kind": "Plan"})
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
