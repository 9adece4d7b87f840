"""The plan of a project does not depend on the order in which Python happens to keep its sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import EXAMPLES


@pytest.mark.slow
def test_a_project_has_the_same_plan_under_every_hash_seed() -> None:
    def planned(seed: str) -> dict[str, object]:
        command = [sys.executable, "-m", "jellybean", "plan", str(EXAMPLES / "vqa"), "--dry-run", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, encoding="utf-8")
        figures: dict[str, object] = json.loads(shown.stdout)
        assert figures.pop("solve_s") is not None
        return figures

    first = planned("1")
    assert first["placements"]
    assert planned("2") == first
