"""The whole loop of the digits example: train a variant, hand it back, measure it, plan with it, serve the plan."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import jellybean_process
from tests.support.skips import NotInstalled

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason=NotInstalled.SCIKIT_LEARN)

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(3600)]
ASKED = ("--set", "slo.accuracy=85", "--set", "sources.strip.rate=20/s")
BEFORE = ("--set", "operators.shape.variants=[mlp, cnn-small, cnn-large, cnn-large-int8]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("projects") / "digits"
    jellybean_process("init", "digits", str(folder))
    done = jellybean_process("train", str(folder), "--json", timeout=1800)
    assert f"next: jellybean profile {folder}" in done.stderr
    return folder, json.loads(done.stdout)


def test_it_learns_and_is_handed_back(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, told = trained
    assert told["epochs"][-1]["accuracy"] > 95  # percent of the crops that are kept for tuning
    digest = hashlib.sha256((folder / "models/shape-strokes-mlp.onnx").read_bytes()).hexdigest()
    assert told["exported"]["sha256"] == digest
    line = f"strokes-mlp: {{model: models/shape-strokes-mlp.onnx, sha256: {digest}}}"
    assert line in (folder / "workflow.yaml").read_text(encoding="utf-8")
    assert "strokes-mlp" in jellybean_process("validate", str(folder), status=2).stderr  # it has no figures yet


def test_the_planner_takes_it_and_it_is_served(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    jellybean_process("profile", str(folder), "--seconds", "0.1", timeout=1800)
    before = json.loads(jellybean_process("plan", str(folder), *ASKED, *BEFORE, "--json").stdout)
    after = json.loads(jellybean_process("plan", str(folder), *ASKED, "--json").stdout)
    assert before["selection"]["shape"] != "strokes-mlp" == after["selection"]["shape"]
    assert after["cost_usd_per_h"]["total"] < before["cost_usd_per_h"]["total"]
    jellybean_process("up", str(folder), *ASKED, "--detach")
    try:
        answer = json.loads(
            jellybean_process("infer", str(folder), "--input", f"strip={folder}/samples/strip.png", "--json").stdout
        )
        assert isinstance(answer["number"][0], int)
        easy = ("--set", "slo.accuracy=85", "--set", "sources.strip.rate=2/s")
        record = json.loads(jellybean_process("bench", str(folder), "--duration", "20", *easy, "--json").stdout)
        assert record["plan"] == after["hash"]
        assert record["completed"] == record["offered"] > 0
        assert record["accuracy"] > 70  # of some forty strips; 85 in the long run
    finally:
        jellybean_process("down", str(folder))
