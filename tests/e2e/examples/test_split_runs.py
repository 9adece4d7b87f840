"""The split example, profiled, planned, served, measured: cheaper than every plan of whole models, and as predicted."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest

from jellybean.documents import load_project
from jellybean.profiler import profile
from jellybean.serving import Client
from jellybean_agent import Executor
from tests.support.command_line import jellybean_process

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(900)]
WHOLE = ("--set", "operators.read.cuts=0")
AGREES = 0.15  # measured beside predicted


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "split"
    jellybean_process("init", "split", str(directory))
    profile(load_project(directory, profiles=False), seconds_per_point=0.3)
    return directory


def test_the_cut_plan_beats_every_plan_of_whole_models(split: Path) -> None:
    whole = json.loads(jellybean_process("plan", str(split), *WHOLE, "--json").stdout)
    cut = json.loads(jellybean_process("plan", str(split), "--json").stdout)
    assert whole["status"] == cut["status"] == "optimal"
    assert not whole["cuts"]
    assert [(one["operator"], one["variant"], one["crossing_bytes"]) for one in cut["cuts"]] == [("read", "wide", 2048)]
    assert cut["accuracy"] == whole["accuracy"]
    assert cut["cost_usd_per_h"]["total"] < 0.7 * whole["cost_usd_per_h"]["total"]


def test_served_and_measured_as_predicted(split: Path) -> None:
    jellybean_process("plan", str(split))
    predicted = json.loads(jellybean_process("simulate", str(split), "--json").stdout)
    jellybean_process("up", str(split), "--detach")
    try:
        _same_answers(split)
        for last in (False, False, True):  # one that something else disturbed is made again
            found = json.loads(jellybean_process("bench", str(split), "--duration", "20", "--json").stdout)
            figures = {name: found[name] / predicted[name] for name in ("throughput_per_s", "latency_p50_s")}
            if last or all(abs(ratio - 1) <= AGREES for ratio in figures.values()):
                break
            time.sleep(20)
        assert found["failed"] == 0
        assert all(abs(ratio - 1) <= AGREES for ratio in figures.values()), figures
        assert found["accuracy"] >= 93
    finally:
        jellybean_process("down", str(split))


def _same_answers(split: Path) -> None:
    """The stages, served, give what the whole model gives."""
    path = split / "models/wide.onnx"
    whole = Executor(path, hashlib.sha256(path.read_bytes()).hexdigest(), ["plate"])
    with np.load(split / "data/heldout.npz") as data:
        plates = data["plates"][:20]
    with Client.of(split) as client:
        for row in range(len(plates)):
            answer = client.infer({"plate": plates[row : row + 1]})["read"]
            wanted = whole.run((plates[row : row + 1],)).outputs["scores"]
            np.testing.assert_allclose(answer, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))
