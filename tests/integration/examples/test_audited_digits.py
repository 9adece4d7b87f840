"""The digits example with a model whose weights were damaged: found by audits while it is served, without labels."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from jellybean.documents import load_project
from jellybean.profiler.accuracy import measure_accuracy
from jellybean.profiler.cache import Cache
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from tests.support.command_line import jellybean, jellybean_process
from tests.support.paths import EXAMPLES

pytestmark = [pytest.mark.nightly, pytest.mark.alone, pytest.mark.timeout(900)]

SERVED = {"find": "find", "shape": "cnn-large-int8", "strokes": "cnn-int8", "read": "read", "number": "number"}
MODEL = "models/shape-cnn-large-int8.onnx"
SLO = "slo: {accuracy: 89, latency_p99: 3 s, budget: 1.50 USD/h}"
WORSE = (4.0, 8.0)  # points, at least and at most
SECONDS = 60


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, audited and profiled here."""
    folder = shutil.copytree(EXAMPLES / "digits", tmp_path_factory.mktemp("audited") / "digits")
    path = folder / "workflow.yaml"
    text = path.read_text(encoding="utf-8")
    assert SLO in text
    path.write_text(text.replace(SLO, "slo: {accuracy: 89, audit: 50 %}"), encoding="utf-8")
    jellybean_process("profile", str(folder), timeout=600)
    return folder


def accuracy(folder: Path) -> float:
    workload = workload_of(load_project(folder, profiles=False))
    found = measure_accuracy(workload, Flow(workload), [SERVED], Cache.open(folder), lambda done: None)
    return found.percent[0]


def damage(folder: Path, share: float) -> None:
    """Replace a share of the model's weights by noise, and state its hash in the workflow."""
    path, workflow = folder / MODEL, folder / "workflow.yaml"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    model, rng = onnx.load(path), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        weights = numpy_helper.to_array(tensor)
        if weights.dtype == np.int8 and weights.size > 1:
            noise = rng.integers(-128, 128, weights.shape, np.int8)
            changed = np.where(rng.random(weights.shape) < share, noise, weights)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    path.write_bytes(model.SerializeToString())
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    workflow.write_text(workflow.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")


def audited(folder: Path, status: int) -> dict[str, Any]:
    """What `accuracy` says of a minute of serving; `status`: also of `bench`, which knows the labels."""
    jellybean_process("plan", str(folder), "--stale")
    jellybean_process("up", str(folder), "--stale", "--detach")
    try:
        jellybean_process("bench", str(folder), "--duration", str(SECONDS), status=status)
    finally:
        jellybean_process("down", str(folder))
    return dict(json.loads(jellybean("accuracy", str(folder), "--json", status=status).stdout)["audits"])


def test_a_model_as_profiled_is_as_planned(digits: Path) -> None:
    found = audited(digits, 0)
    assert found["expected_agreement"] == pytest.approx(99.67, abs=0.5)
    assert found["agreement"]["value"] >= 98.0


def test_a_damaged_model_is_found(digits: Path, tmp_path: Path) -> None:
    usual, share = accuracy(digits), 0.02
    while True:
        folder = shutil.copytree(digits, tmp_path / f"damaged-{share:g}", ignore=shutil.ignore_patterns(".jellybean"))
        damage(folder, share)
        worse = usual - accuracy(folder)
        if worse >= WORSE[0]:
            break
        share *= 1.25
    assert worse <= WORSE[1]
    found = audited(folder, 5)
    assert found["below_plan"]
    estimate = found["estimate"]
    assert estimate["low"] - 2.0 <= usual - worse <= estimate["high"] + 2.0  # an interval holds in 95 %
    drifted = json.loads(jellybean("report", str(folder), "--drift", "--json", status=5).stdout)["drifted"]
    assert "agreement with the reference" in [one["name"] for one in drifted]
