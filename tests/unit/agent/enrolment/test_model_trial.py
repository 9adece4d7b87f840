"""When the models of the next plan are not tried, and that the agent says so; tried ones are in test_gateway (e2e)."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean_agent import Device, ModelError, plan_view
from jellybean_agent.brain.plan_view import PythonView
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.process.model_trial import ModelTrial
from jellybean_agent.system.memory import available_memory_bytes, machine_memory_bytes
from tests.support.tiny_models import chain, make_plan, spin


@pytest.mark.parametrize(
    ("pool", "left_bytes", "reason"),
    [
        (ModelProcessPool(), 2**20, "loading them takes 7 MiB, and 1 MiB are left beside those that are served"),
        (None, 2**30, "models run in the agent's process (--in-process), which a crash would end"),
    ],
)
def test_models_that_cannot_be_tried_are_loaded_at_the_switch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pool: ModelProcessPool | None, left_bytes: int, reason: str
) -> None:
    view = plan_view(chain(tmp_path))
    model = tmp_path / "large.onnx"
    model.write_bytes(bytes(2 * 2**20))  # which would not load
    trial = ModelTrial(pool, tmp_path, 1.0, lambda: left_bytes)
    with caplog.at_level(logging.WARNING, "jellybean.agent"):
        asyncio.run(trial(view, view.workers["edge-1"], {"models/double.onnx": model}))
    assert caplog.messages == [f"the models of plan {view.hash[:12]} are not tried before the switch: {reason}"]


def test_functions_of_the_machine_and_models_of_other_devices_are_not_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both might need what the present plan's have: here a pool that has not been started would fail."""
    view = plan_view(chain(tmp_path))
    trial, edge = ModelTrial(ModelProcessPool(), tmp_path, 1.0), view.workers["edge-1"]
    own = replace(view.operators["double"], python=PythonView("own_steps:times", "0" * 64, "{}"))
    with caplog.at_level(logging.INFO, "jellybean.agent"):
        asyncio.run(trial(replace(view, operators={"double": own}), edge, {}))
    assert caplog.messages == ["not tried before the switch, as they run functions of this machine: double"]
    caplog.clear()
    with pytest.raises(ModelError, match="has no CUDAExecutionProvider"):
        asyncio.run(trial(view, replace(edge, device=Device("cuda")), {}))
    asyncio.run(trial(view, replace(edge, device=Device("AzureExecutionProvider")), {}))
    reason = "its device AzureExecutionProvider has the models that are served, and might have no memory for both"
    assert caplog.messages == [f"the models of plan {view.hash[:12]} are not tried before the switch: {reason}"]


@pytest.mark.slow
def test_a_trial_that_is_cancelled_ends_its_process_and_leaves_no_file(tmp_path: Path) -> None:
    """Its model would run for the whole limit of a run. What an earlier trial left is removed."""
    operators = {"spin": (["x"], spin(tmp_path / "models/spin.onnx", 2.0**40))}
    document = make_plan(tmp_path, operators, [(1.0, {"spin": "edge-1"})], sources={"x": "edge"})
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "trial-killed").mkdir()
    command = [sys.executable, str(Path(__file__).with_name("trial_host.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"links": ["models/spin.onnx"], "cancelled": True, "processes": 0, "files": []}
    assert done.stderr == ""


def test_available_memory_is_part_of_the_machine_s() -> None:
    assert 0 < available_memory_bytes() < machine_memory_bytes()
