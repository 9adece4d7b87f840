"""A model that takes the number of rows of each request gathers in batches: checked, profiled, planned and served."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from jellybean.documents import load_project
from jellybean.errors import DocumentError
from jellybean.serving import Client
from jellybean_solver import from_document
from tests.support.command_line import jellybean
from tests.support.tiny_models import counted_positives, scale, segment_sums

WORKFLOW = """\
kind: Workflow
name: sums
sources:
  x: {tier: edge, rate: 50/s, message: 16 B, inputs: data/heldout.npz#x}
operators:
  keep:
    inputs: [x]
    variants: {only: {model: models/keep.onnx, sha256: KEEP, rows: counts}}
  halve:
    inputs: [{from: keep, ratio: measured}]
    variants: {only: {model: models/halve.onnx, sha256: HALVE}}
  total:
    inputs: [{from: halve, gather: true}]
    variants: {only: {model: models/total.onnx, sha256: TOTAL, gathered_rows: {halve: counts}}}
    batch_delay: 40 ms
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 1, price: 0.1 USD/h, speed: 1}}
"""
ROWS = np.array([[1, -1, 2, -2], [-1, -1, -1, -1], [3, 4, 5, 6], [-7, 8, -9, -10]], np.float32)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "sums"
    hashes = {
        "KEEP": counted_positives(folder / "models/keep.onnx"),
        "HALVE": scale(folder / "models/halve.onnx", 0.5, 1),
        "TOTAL": segment_sums(folder / "models/total.onnx", TensorProto.INT32),
    }
    text = WORKFLOW
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=ROWS)
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_requests_gather_their_own_rows_in_a_shared_run(project: Path) -> None:
    jellybean("profile", str(project), "--seconds", "0.05")
    batches = load_project(project).profiles.operators["total"]["only"].latency["box"]
    assert set(batches) >= {1, 4}
    slow = {size: f"{10 + size} ms" for size in batches}  # so that batches are worth it, whatever was measured
    latency = f"profiles.operators.total.only.latency.box={json.dumps(slow)}".replace('"', "")
    jellybean("plan", str(project), "--set", latency)
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert plan.operator_by_name["total"].batch["box"] > 1
    jellybean("simulate", str(project), "--set", latency)
    jellybean("up", str(project), "--detach")
    is_told = threading.Event()

    def answered(number: int) -> list[tuple[int, float]]:
        """The held-out rows sent by one client until `top` has told what runs, each with its answer."""
        with Client.of(project) as client:
            found: list[tuple[int, float]] = []
            while not is_told.is_set():
                row = (number + len(found)) % len(ROWS)
                found.append((row, client.infer({"x": ROWS[row][None]})["total"].item()))
        return found

    try:
        with ThreadPoolExecutor(8) as threads:
            clients = [threads.submit(answered, number) for number in range(8)]
            told = json.loads(jellybean("top", str(project), "--once", "--json").stdout)
            is_told.set()
    finally:
        is_told.set()
        jellybean("down", str(project))
    for row, answer in (pair for client in clients for pair in client.result()):
        assert answer == 0.5 * ROWS[row][ROWS[row] > 0].sum()
    (total,) = [one for one in told["operators"] if one["operator"] == "total"]
    assert total["batch"] > 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{halve: counts}", "{halve: numbers}", "'numbers' is none of its inputs; its inputs: y, counts"),
        ("{halve: counts}", "{halve: y}", "input y is float32: numbers of rows are integers, one for each request"),
        ("{halve: counts}", "{keep: counts}", "keep is not gathered here, so none of its rows are counted"),
        ("{halve: counts}", "{}", "gathered_rows"),
        ("{halve: counts}}", "{halve: counts}, cuts: 2}", "a model with gathered_rows stays whole"),
    ],
)
def test_what_cannot_count_is_told(project: Path, old: str, new: str, told: str) -> None:
    path = project / "workflow.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentError) as raised:
        load_project(project, profiles=False)
    assert told in " ".join(str(raised.value).split())
