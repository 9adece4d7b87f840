"""A share of the requests also runs the reference, of which clients notice nothing, and a worse model shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean.serving import Client, RemoteLedger, owner_endpoint, served_document
from jellybean.serving.local.running import down
from jellybean_solver import to_document
from tests.support.audited_project import LARGE, POINTS_WORSE, SMALL, make_audited_project, requests
from tests.support.command_line import jellybean
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SHARE, COUNT = 0.5, 1_000


def audits(directory: Path) -> dict[str, float]:
    """The gateway's audits by outcome."""
    with Client.at(owner_endpoint(directory)) as owner:
        families = list(text_string_to_metric_families(owner.metrics()))
    samples = [sample for family in families for sample in family.samples]
    name = "jellybean_gateway_audits_total"
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name == name}


def serve(folder: Path, start, share: float) -> int:
    """Serve COUNT requests one after the other until their `share` is audited; returns how many were right."""
    jellybean("plan", str(folder))
    plan = plan_project(load_project(folder)).plan
    assert plan is not None
    start(folder, to_document(plan), detach=True)
    rows, labels = requests(COUNT, seed=1)
    right = 0
    with Client.of(folder) as client:
        for row, label in zip(rows, labels, strict=True):
            answer = client.infer({"x": row[None]})
            assert answer.keys() == {"classify"}
            right += int(np.argmax(answer["classify"])) == label
    wait_until(lambda: sum(audits(folder).values()) >= share * COUNT)
    return right


def test_a_model_as_profiled_is_as_planned(tmp_path: Path, start) -> None:
    folder = make_audited_project(tmp_path, share_percent=100 * SHARE)
    right = serve(folder, start, SHARE)
    found = audits(folder)
    with Client.at(owner_endpoint(folder)) as owner:
        plan = served_document(owner_endpoint(folder))
        asked = RemoteLedger(owner)
        wait_until(lambda: sum(line.audits for line in asked.audits("", plan["hash"])) == SHARE * COUNT)
    down(folder, timeout_s=5.0)
    assert right == SMALL * COUNT
    assert sum(found.values()) == SHARE * COUNT  # evenly drawn
    assert found["shed"] + found["lost"] == 0
    assert found["differed"] == pytest.approx((LARGE - SMALL) * SHARE * COUNT, abs=5)
    told = json.loads(jellybean("accuracy", str(folder), "--json").stdout)["audits"]
    assert told["audits"] == SHARE * COUNT
    assert told["agreement"]["value"] == pytest.approx(100 * found["agreed"] / (SHARE * COUNT))
    assert told["expected_agreement"] == 99.5
    assert told["estimate"]["low"] <= 100 * SMALL <= told["estimate"]["high"]
    assert told["bounds"]["low"] <= 100 * SMALL <= told["bounds"]["high"]


def test_a_model_made_five_points_worse_is_found_without_labels(tmp_path: Path, start) -> None:
    """Every request is audited, so that the figures are no sample."""
    folder = make_audited_project(tmp_path, share_percent=100.0, served=SMALL - POINTS_WORSE)
    right = serve(folder, start, 1.0)
    down(folder, timeout_s=5.0)
    told = jellybean("accuracy", str(folder), "--json", status=5)
    found = json.loads(told.stdout)["audits"]
    assert found["below_plan"]
    assert found["estimate"]["value"] == pytest.approx(100 * right / COUNT, abs=0.2)
    assert found["estimate"]["low"] <= 100 * right / COUNT <= found["estimate"]["high"]
    shown = jellybean("accuracy", str(folder), status=5)
    assert "accuracy by audits, without labels" in shown.stdout
    assert "the newest plan is worse than planned (97.50 %)" in shown.stderr
    drifted = json.loads(jellybean("report", str(folder), "--drift", "--json", status=5).stdout)["drifted"]
    assert "agreement with the reference" in [one["name"] for one in drifted]
