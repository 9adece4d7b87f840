"""A model that counts the rows of each request fans out in batches: checked, profiled, planned and served."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jellybean.documents import load_project
from jellybean.errors import DocumentError
from jellybean.serving import Client
from jellybean_agent import plan_view
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.worker.run_outputs import run_items
from jellybean_solver import Plan, from_document, to_document
from tests.support.command_line import jellybean
from tests.support.tiny_models import counted_positives, scale

WORKFLOW = """\
kind: Workflow
name: positives
sources:
  x: {tier: edge, rate: 50/s, message: 16 B, inputs: data/heldout.npz#x}
operators:
  keep:
    inputs: [x]
    variants: {only: {model: models/keep.onnx, sha256: KEEP, rows: counts}}
    batch_delay: 40 ms
  double:
    inputs: [{from: keep, ratio: measured}]
    variants: {only: {model: models/double.onnx, sha256: DOUBLE}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 1, price: 0.1 USD/h, speed: 1}}
"""
ROWS = np.array([[1, -1, 2, -2], [-1, -1, -1, -1], [3, 4, 5, 6], [-7, 8, -9, -10]], np.float32)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "positives"
    hashes = {
        "KEEP": counted_positives(folder / "models/keep.onnx"),
        "DOUBLE": scale(folder / "models/double.onnx", 2.0, 1),
    }
    text = WORKFLOW
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=ROWS)
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return folder


def sizes_of_a_run(project: Path, plan: Plan) -> list[int]:
    """The rows that a run gives to each of three requests which have three rows together."""
    view = plan_view(to_document(plan))
    executor = load_executors(view, view.serving[0], ModelSettings(project))["keep"]
    items = [WorkItem(number, f"r{number}", 0, (), (ROWS[row][None],)) for number, row in enumerate((0, 1, 3))]
    return [outputs.rows("double") for outputs in run_items(view.operators["keep"], executor, items).outputs]


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["counts", "{y: counts}"])
def test_requests_share_runs_and_get_their_own_rows(project: Path, rows: str) -> None:
    path = project / "workflow.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("rows: counts", f"rows: {rows}"), encoding="utf-8")
    jellybean("profile", str(project), "--seconds", "0.05")
    batches = load_project(project).profiles.operators["keep"]["only"].latency["box"]
    assert set(batches) >= {1, 4}
    slow = {size: f"{10 + size} ms" for size in batches}  # so that batches are worth it, whatever was measured
    latency = f"profiles.operators.keep.only.latency.box={json.dumps(slow)}".replace('"', "")
    jellybean("plan", str(project), "--set", latency)
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert plan.operator_by_name["keep"].batch["box"] > 1
    assert sizes_of_a_run(project, plan) == [2, 0, 1]
    jellybean("up", str(project), "--detach")
    try:
        with Client.of(project) as client, ThreadPoolExecutor(8) as threads:
            rows = [ROWS[number % len(ROWS)] for number in range(64)]
            answers = list(threads.map(lambda row: client.infer({"x": row[None]})["double"], rows))
        told = json.loads(jellybean("top", str(project), "--once", "--json").stdout)
    finally:
        jellybean("down", str(project))
    for row, answer in zip(rows, answers, strict=True):
        np.testing.assert_array_equal(answer.reshape(-1), 2.0 * row[row > 0])
    (keep,) = [one for one in told["operators"] if one["operator"] == "keep"]
    assert keep["batch"] is None or keep["batch"] > 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rows: counts", "rows: numbers", "'numbers' is none of its outputs; its outputs: y, counts"),
        ("rows: counts", "rows: {y: y}", "output y is float32: numbers of rows are integers, one for each request"),
        ("rows: counts", "rows: {y: n}", "'n' is none of its outputs; its outputs: y, counts"),
        ("rows: counts", "rows: {counts: counts}", "the rows of y, which is fanned out to double, are not counted"),
        ("rows: counts", "rows: y", "output y is float32: numbers of rows are integers, one for each request"),
        ("ratio: measured", "gather: false", "keep does not fan out, so no rows are counted"),
    ],
)
def test_what_cannot_count_is_told(project: Path, old: str, new: str, told: str) -> None:
    path = project / "workflow.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(project, profiles=False)
    assert told in " ".join(str(raised.value).split())
