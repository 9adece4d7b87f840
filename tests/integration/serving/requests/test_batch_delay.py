"""Requests that wait for others to share a run, in a real agent."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, parse, read_state
from tests.support.tiny_models import make_plan, scale

pytestmark = pytest.mark.slow

DELAY_S = 3.0  # in which two of four requests that are sent together meet, on a busy machine too
ONES = {"x": np.ones((1, 4), np.float32)}


def test_a_lonely_request_waits_and_several_share_a_run(tmp_path: Path, start) -> None:
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    routes = [(1.0, {"double": "edge-1"})]
    document = make_plan(tmp_path, operators, routes, sources={"x": "edge"}, batch=4, batch_delay_s=DELAY_S)
    running = start(tmp_path, document)
    state = read_state(tmp_path)
    assert state is not None
    gateway = next(process.address for process in state.processes if process.name == "gateway")
    with Client(running.gateway_address) as client, Client(gateway) as own, ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        assert client.infer(ONES)["double"].tolist() == [[2, 2, 2, 2]]
        assert time.monotonic() - began >= DELAY_S
        for _ in range(2):
            waiting = [pool.submit(client.infer, ONES) for _ in range(4)]
            assert all(request.result(60)["double"].tolist() == [[2, 2, 2, 2]] for request in waiting)
        runs = parse(own.metrics())["jellybean_runs_total"]
    sizes = {int(dict(labels)["batch"]): count for labels, count in runs.items()}
    assert sum(size * count for size, count in sizes.items()) == 9
    assert max(sizes) > 1
