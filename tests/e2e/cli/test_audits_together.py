"""Two audited workflows served on one fleet, of which one mixes variants: each has its audits and its estimate."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, running_state
from tests.support.audited_project import LARGE, POINTS_WORSE, SMALL, make_audited_project, requests
from tests.support.command_line import jellybean
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 800
SHARES = {"mixed": 100.0, "worse": 100.0}
MEAN = 97.8


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """`worse` is five points worse than its profiles say; `mixed` gets both models for a mean accuracy."""
    folder = tmp_path / "two"
    for name, share in SHARES.items():
        served = SMALL - POINTS_WORSE if name == "worse" else SMALL
        make_audited_project(folder / "workflows" / name, share_percent=share, served=served)
    shutil.move(folder / "workflows/mixed/infrastructure.yaml", folder / "infrastructure.yaml")
    (folder / "workflows/worse/infrastructure.yaml").unlink()
    fleet = folder / "infrastructure.yaml"
    fleet.write_text(fleet.read_text(encoding="utf-8").replace("count: 2", "count: 6"), encoding="utf-8")
    mixed = folder / "workflows/mixed/workflow.yaml"
    text = mixed.read_text(encoding="utf-8").replace("accuracy: 97,", f"accuracy: {{mean: {MEAN}}},")
    mixed.write_text(text, encoding="utf-8")
    return folder


def served(project: Path, workflow: str) -> int:
    """Serve all requests of a workflow, and wait for its audits; how many were right."""
    rows, labels = requests(COUNT, seed=1)
    socket, right = running_state(project).gateway_address, 0
    with Client(socket, workflow=workflow) as client:
        for row, label in zip(rows, labels, strict=True):
            answer = client.infer({"x": row[None]})
            assert answer.keys() == {"classify"}
            right += int(np.argmax(answer["classify"])) == label
    return right


def audited(project: Path, workflow: str) -> list[tuple[str, int, float]]:
    """(selection, audits, agreed) in the ledger, with what is not written yet once it is."""
    with contextlib.closing(sqlite3.connect(project / ".jellybean" / "ledger.db")) as ledger:
        query = "SELECT selection, SUM(audits), SUM(agreed) FROM ledger_audits WHERE workflow = ? GROUP BY selection"
        return [tuple(row) for row in ledger.execute(query, (workflow,))]


def ended(project: Path, workflow: str) -> int:
    """Audits in the ledger, also those without a result, of which a busy machine may have some."""
    with contextlib.closing(sqlite3.connect(project / ".jellybean" / "ledger.db")) as ledger:
        query = "SELECT SUM(audits + shed + lost) FROM ledger_audits WHERE workflow = ?"
        return ledger.execute(query, (workflow,)).fetchone()[0] or 0


def test_each_workflow_has_its_audits_and_a_mixture_those_of_its_selections(project: Path) -> None:
    planned = json.loads(jellybean("plan", str(project), "--json").stdout)["workflows"]
    own = planned["mixed"]["audit"]
    assert {one["name"]: one["agreement"] for one in own["selections"]} == {
        "classify=large": 100.0,
        "classify=small": 99.5,
    }
    shares = {one["name"].partition("=")[2]: one["share"] for one in own["selections"]}
    assert planned["worse"]["audit"]["share"] == 1.0
    assert "worse: audit of 100 %" in jellybean("plan", str(project)).stdout

    jellybean("up", str(project), "--detach")
    try:
        right = {name: served(project, name) for name in SHARES}
        for name, share in SHARES.items():
            wait_until(lambda name=name, share=share: ended(project, name) == share / 100 * COUNT, timeout_s=40.0)
    finally:
        jellybean("down", str(project))

    counts = {name.partition("=")[2]: count for name, count, _ in audited(project, "mixed")}
    assert counts == {name: pytest.approx(share * COUNT, abs=2) for name, share in shares.items()}
    assert [name for name, _, _ in audited(project, "worse")] == [""]

    told = json.loads(jellybean("accuracy", str(project), "--json", status=5).stdout)["workflows"]
    for name, count in right.items():
        estimate = told[name]["audits"]["estimate"]
        assert estimate["low"] <= 100 * count / COUNT <= estimate["high"]
    assert told["worse"]["audits"]["below_plan"]
    mixed = told["mixed"]["audits"]
    assert not mixed["below_plan"]
    assert mixed["estimate"]["value"] == pytest.approx(100 * right["mixed"] / COUNT, abs=0.6)
    assert [one["agreement"]["value"] for one in mixed["selections"] if one["name"] == "classify=large"] == [100.0]
    assert right["mixed"] <= LARGE * COUNT
    shown = jellybean("accuracy", str(project), status=5)
    assert "worse: accuracy by audits, without labels" in shown.stdout
    assert "classify=small" in shown.stdout
    assert "worse: the newest plan is worse than planned (97.50 %)" in shown.stderr
    drifted = json.loads(jellybean("report", str(project), "--drift", "--json", status=5).stdout)["drifted"]
    assert "worse: agreement with the reference" in [one["name"] for one in drifted]
    assert "mixed: agreement with the reference" not in [one["name"] for one in drifted]
