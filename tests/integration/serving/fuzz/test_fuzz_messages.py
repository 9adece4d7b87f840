"""A live agent under mutated messages: every refusal is a clean status, and it serves on in bounded memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.serving import Client, Running
from tests.integration.serving.fuzz.message_fuzz import Told, fuzz
from tests.support.tiny_models import difference, make_plan, scale

pytestmark = pytest.mark.slow

ONES = {"x": np.ones((1, 4), np.float32)}
MOST_GROWTH_BYTES = 200 * 2**20


@pytest.mark.parametrize(
    "count", [4_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(6 * 3600)])]
)
def test_an_agent_under_mutated_messages(tmp_path: Path, start: Callable[..., Running], count: int) -> None:
    """Of a join too: messages whose other half never comes are not kept for ever."""
    operators = {
        "double": (["x"], scale(tmp_path / "models/double.onnx", 2.0)),
        "triple": (["x"], scale(tmp_path / "models/triple.onnx", 3.0)),
        "both": (["double", "triple"], difference(tmp_path / "models/both.onnx", "triple", "double")),
    }
    route = dict.fromkeys(operators, "edge-1")
    document = make_plan(tmp_path, operators, [(1.0, route)], sources={"x": "edge"})
    running = start(tmp_path, document)
    agent = next(process for process in running.state.processes if process.name == "edge-1")
    process, told, began = psutil.Process(agent.pid), Told(), time.monotonic()
    with Client(running.gateway_address) as client:
        assert client.infer(ONES)["both"].tolist() == [[1, 1, 1, 1]]
        before = process.memory_info().rss
        share = max(4_000, count // 50)
        for seed in range(count // share):
            asyncio.run(fuzz(agent.address, str(document["hash"]), share, seed, told))
            assert client.infer(ONES, timeout_s=20.0)["both"].tolist() == [[1, 1, 1, 1]]
            if os.environ.get("FUZZ_PROGRESS"):
                print(f"{told.sent.total():,} in {time.monotonic() - began:.0f} s {told.statuses}", flush=True)
        grown = process.memory_info().rss - before
    assert told.sent.total() >= count
    assert abs(told.sent["parses"] - told.sent["broken"]) <= 0.01 * count
    assert not told.unclean, told.unclean[:5]
    assert process.pid == agent.pid
    assert process.is_running()
    assert grown < MOST_GROWTH_BYTES
    assert "Traceback" not in Path(agent.log).read_text(encoding="utf-8")
    print(told.sent, told.statuses, f"grown {grown / 2**20:.0f} MiB in {time.monotonic() - began:.0f} s")
