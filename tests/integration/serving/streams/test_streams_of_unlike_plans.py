"""Streams of plans that mix variants, or bear losses: each stream's answers are those of one model in one process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, read_state
from tests.support.command_line import jellybean, jellybean_process
from tests.support.stream_load import StreamLoad
from tests.support.streams_project import DECAYS, make_streams_project, uninterrupted
from tests.support.waiting import wait_until

CHUNKS = 24
# Of 8 streams a server takes 2 with the variant `long`, or all with the other one.
SLOW = (
    "profiles.operators.remember.long.latency.server=80 ms",
    "profiles.operators.remember.short.latency.server=20 ms",
)
STREAMS = ("sources.x.rate=40/s", "sources.x.streams=8", "workers.server.count=6", *SLOW)


def options(*overrides: str) -> list[str]:
    return [part for one in (*STREAMS, *overrides) for part in ("--set", one)]


def planned(project: Path, *overrides: str) -> dict:
    jellybean("plan", str(project), *options(*overrides))
    plan: dict = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    return plan


def send(project: Path, *events: object) -> list[str]:
    """Send 8 streams; the variant that answered each, by its answers."""
    inputs = [np.random.default_rng(number).normal(size=(CHUNKS, 1, 4)).astype(np.float32) for number in range(8)]
    with Client.of(project) as client:
        load = StreamLoad(client.address, "x", "remember", inputs)
        asyncio.run(load.run(*events))  # type: ignore[arg-type]
    found = []
    for sent, answers in zip(inputs, load.answers, strict=True):
        given = np.concatenate(answers)
        found += [name for name, decay in DECAYS.items() if np.allclose(given, uninterrupted(sent, decay), atol=1e-5)]
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_streams_project(tmp_path_factory.mktemp("unlike"))


@pytest.mark.slow
def test_each_stream_is_answered_by_one_variant_and_outlives_a_loss(project: Path) -> None:
    """Some of 8 streams get the better variant; then all get it, on five servers, of which one may be lost."""
    better = (planned(project, "slo.accuracy={mean: 84}")["accuracy"] - 80) / 15 * 8
    assert better == pytest.approx(round(better))
    assert 3 <= round(better) < 8
    jellybean_process("up", str(project), "--detach", "--port", "0", "--insecure")
    try:
        assert Counter(send(project)) == {"long": round(better), "short": 8 - round(better)}

        survives = planned(project, "slo.accuracy=90", "slo.survive=[1 worker]", "workers.box.count=2")
        lost = next(worker for worker in survives["workers"] if worker["pool"] == "server")["name"]
        jellybean_process("apply", str(project))
        with Client.of(project) as client:
            wait_until(lambda: client.status().state == "ready")

            def kill() -> None:
                state = read_state(project)
                assert state is not None
                os.kill(next(one.pid for one in state.processes if one.name == lost), signal.SIGKILL)
                wait_until(lambda: client.status().workers[lost] != "ready")

            assert Counter(send(project, kill)) == {"long": 8}
    finally:
        jellybean_process("down", str(project))
