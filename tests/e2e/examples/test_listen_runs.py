"""The listen example: streams of sound heard by a pretrained network with a state, whatever happens to the boxes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from jellybean.serving import Client, read_state
from tests.support.command_line import jellybean_process
from tests.support.skips import Absent
from tests.support.stream_load import StreamLoad
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

STREAMS, CHUNKS = 200, 40
SMALLER = ("--set", "sources.chunk.rate=250/s", "--set", "sources.chunk.streams=8")


@pytest.fixture(scope="module")
def listen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the example, profiled, planned and served."""
    folder = tmp_path_factory.mktemp("projects") / "listen"
    command = [sys.executable, "-m", "jellybean", "init", "listen", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode and "pip download" in made.stderr:
        pytest.skip(f"{Absent.DOWNLOAD}: {made.stderr.strip()}")
    assert made.returncode == 0, made.stderr
    jellybean_process("profile", str(folder), timeout=600)
    jellybean_process("plan", str(folder))
    jellybean_process("up", str(folder), "--detach")
    yield folder
    jellybean_process("down", str(folder))


def pid(folder: Path, worker: str) -> int:
    state = read_state(folder)
    assert state is not None
    return next(process.pid for process in state.processes if process.name == worker)


def uninterrupted(model: Path, chunks: np.ndarray) -> np.ndarray:
    """The answers of one process to the chunks of one stream."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    memory, context, answers = np.zeros((1, 2, 128), np.float32), np.zeros((1, 64), np.float32), []
    for chunk in chunks:
        answer, memory, context = session.run(None, {"chunk": chunk, "memory": memory, "context": context})
        answers.append(answer)
    return np.concatenate(answers)


def test_bench_hears_as_well_as_the_plan_says(listen: Path) -> None:
    planned = json.loads((listen / "plan.json").read_bytes())["accuracy"]
    found = json.loads(jellybean_process("bench", str(listen), "--duration", "12", "--json").stdout)
    assert found["completed"] == found["offered"] == 6000
    assert found["accuracy"] == pytest.approx(planned, abs=1.5)  # percent
    assert planned > 92


def test_every_stream_is_heard_as_by_one_process_over_a_kill_a_drain_and_another_plan(listen: Path) -> None:
    data = np.load(listen / "data/heldout.npz")["chunks"]
    starts = np.random.default_rng(0).integers(0, len(data) - CHUNKS, STREAMS)
    inputs = [data[start : start + CHUNKS, np.newaxis] for start in starts]
    with Client.of(listen) as client:
        wait_until(lambda: client.status().state == "ready")
        before = client.status()

        def away(name: str, number: signal.Signals) -> None:
            os.kill(pid(listen, name), number)
            wait_until(lambda: client.status().workers[name] != "ready")

        def smaller() -> None:
            jellybean_process("plan", str(listen), *SMALLER)
            jellybean_process("apply", str(listen))

        load = StreamLoad(client.address, "chunk", "hear", inputs)
        boxes = sorted(before.workers)
        asyncio.run(load.run(lambda: away(boxes[0], signal.SIGKILL), lambda: away(boxes[1], signal.SIGTERM), smaller))
        after = client.status()
        assert (after.answered - before.answered, after.failed) == (STREAMS * CHUNKS, before.failed)
        assert len(after.workers) < len(before.workers)
    plan = json.loads((listen / "plan.json").read_bytes())
    model = listen / plan["operators"][0]["model"]["path"]
    for sent, answers in zip(inputs, load.answers, strict=True):
        np.testing.assert_allclose(np.concatenate(answers), uninterrupted(model, sent), atol=1e-5)
