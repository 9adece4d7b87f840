"""Two workflows on one fleet, of which one survives the loss of a worker that both use, killed under load."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, read_state, running_state
from tests.support.command_line import jellybean
from tests.support.steady_load import SteadyLoad
from tests.support.two_scales import FACTORS, make_two_scales
from tests.support.waiting import wait_until

RATES_PER_S = {"shop": 3.0, "yard": 15.0}
TARGET_S = 2.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two boxes carry both. One carries shop and 63 % of yard; one server carries all."""
    folder = make_two_scales(tmp_path / "two")
    for path, changes in {
        "infrastructure.yaml": {"count: 2": "count: 4"},
        "workflows/shop/workflow.yaml": {"12/s": "3/s", "latency_p99: 2 s": "latency_p99: 2 s, survive: 1 worker"},
        "workflows/yard/workflow.yaml": {"6/s": "15/s"},
        "workflows/shop/profiles.yaml": {"16 ms": "64 ms", "10 ms": "40 ms"},
        "workflows/yard/profiles.yaml": {"16 ms": "64 ms", "10 ms": "40 ms"},
    }.items():
        text = (folder / path).read_text(encoding="utf-8")
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.alone  # it compares times
def test_one_is_served_whole_and_the_other_in_part_until_the_worker_is_back(project: Path) -> None:
    told = json.loads(jellybean("plan", str(project), "--json").stdout)
    assert told["after_losses"] == [
        {"lost": lost, "answered": {"yard": pytest.approx(0.633, abs=1e-3)}} for lost in ("box-1", "box-2")
    ]
    text = " ".join(jellybean("plan", str(project)).stdout.split())
    assert "shop: any of these may be lost: one of its 4 workers" in text
    assert "yard: gets what is left: 63.3 % to 100 % of its requests are then answered, and the others refused" in text
    jellybean("up", str(project), "--detach")
    loads = {}
    try:
        socket = running_state(project).gateway_address
        for name, rate_per_s in RATES_PER_S.items():
            loads[name] = SteadyLoad(socket, rate_per_s, factor=FACTORS[name], workflow=name)
        with Client(socket) as client, loads["shop"] as shop, loads["yard"] as yard:
            wait_until(lambda: len(yard.latencies_s) > 20)
            assert yard.outcomes.keys() == {"OK"}
            state = read_state(project)
            assert state is not None
            os.kill(next(process.pid for process in state.processes if process.name == "box-1"), signal.SIGKILL)
            wait_until(lambda: client.status().workers["box-1"] == "gone")
            wait_until(lambda: client.status().state == "ready")
        with SteadyLoad(socket, RATES_PER_S["yard"], factor=FACTORS["yard"], workflow="yard") as again:
            wait_until(lambda: len(again.latencies_s) > 40)
        again.check()
        shop.check()
        assert np.quantile(shop.latencies_s, 0.99) <= TARGET_S
        refused = [outcome for outcome in yard.outcomes if outcome != "OK"]
        assert refused
        reason = "box-1 is lost, and what is left must serve other workflows: 63.3 % of the requests are answered"
        assert all(reason in outcome for outcome in refused), yard.outcomes
        assert sum(yard.outcomes.values()) == yard.sent
    finally:
        jellybean("down", str(project))
