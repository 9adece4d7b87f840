"""A result that took its time is printed where it cannot be recorded: a disk that is full or read-only."""

from __future__ import annotations

import json
from pathlib import Path

from jellybean.report import Store
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


def test_a_prediction_that_cannot_be_recorded_is_printed(tmp_path: Path) -> None:
    project = make_scales_project(tmp_path / "scales")
    profiles = project / "profiles.yaml"  # slow workers: few requests are simulated
    profiles.write_text(profiles.read_text(encoding="utf-8").replace("1 ms", "20 ms"), encoding="utf-8")
    jellybean("plan", str(project))
    path = Store.of(project).path
    path.with_name(f"{path.name}-shm").mkdir()
    result = jellybean("simulate", str(project), "--json")
    assert json.loads(result.stdout)["highest_rate_per_s"] > 0
    assert "this prediction is not recorded, and no report has it" in " ".join(result.stderr.split())
    assert jellybean("history", str(project)).stdout
