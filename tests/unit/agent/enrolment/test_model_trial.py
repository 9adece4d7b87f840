"""When the models of the next plan are not tried, and that the agent says so; tried ones are in test_gateway (e2e)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from jellybean_agent import plan_view
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.process.model_trial import ModelTrial
from jellybean_agent.system.memory import available_memory_bytes, machine_memory_bytes
from tests.support.tiny_models import chain


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
    trial = ModelTrial(pool, tmp_path, frozenset(), 1.0, lambda: left_bytes)
    with caplog.at_level(logging.WARNING, "jellybean.agent"):
        asyncio.run(trial(view, view.workers["edge-1"], {"models/double.onnx": model}))
    assert caplog.messages == [f"the models of plan {view.hash[:12]} are not tried before the switch: {reason}"]


def test_available_memory_is_part_of_the_machine_s() -> None:
    assert 0 < available_memory_bytes() < machine_memory_bytes()
