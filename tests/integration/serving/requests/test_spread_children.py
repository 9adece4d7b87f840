"""Children that go round alike workers, in real processes: evenly, rightly joined, and past a worker that is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean.serving import Client, LaunchSettings, parse, read_state
from jellybean.serving.local import launcher
from jellybean.serving.local.running import down
from jellybean_solver import from_document, to_document
from jellybean_solver.model.plan_document import Document
from tests.support.tiny_models import fan_out, gather, make_plan, positives, save, scale, total
from tests.support.waiting import wait_until

ALIKE = ("cloud-1", "cloud-2", "cloud-3")


def plan(root: Path) -> Document:
    """Two branches see each child, and join it; all three operators on three workers each, and the sum on a fourth."""
    models = root / "models"
    operators = {
        "split": (["y"], positives(models / "split.onnx")),
        "left": ([fan_out("split", "left")], scale(models / "left.onnx", 10.0, 1)),
        "right": ([fan_out("split", "right")], scale(models / "right.onnx", 3.0, 1)),
        "join": (["left", "right"], _minus(models / "join.onnx")),
        "sum": ([gather("join", "sum")], total(models / "sum.onnx")),
    }
    routes = [
        (1 / 3, {"split": "edge-1", "sum": "edge-1", "left": ALIKE[i], "right": ALIKE[i - 1], "join": ALIKE[i - 2]})
        for i in range(3)
    ]
    document = make_plan(root, operators, routes, sources={"y": "edge"})
    spread = dict.fromkeys(("left", "right", "join"), (ALIKE,))
    return to_document(replace(from_document(document), spread=spread))


def _minus(path: Path) -> str:
    node = helper.make_node("Sub", ["left", "right"], ["y"])
    return save(path, [node], {"left": ["n", 1], "right": ["n", 1]}, ("y", ["n", 1]))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("spread")
    launcher.up(root, plan(root), LaunchSettings(port=0, insecure=True))
    yield root
    down(root, timeout_s=1.0)


def done(directory: Path, operator: str) -> dict[str, float]:
    """Worker -> requests of an operator that it has completed."""
    state = read_state(directory)
    assert state is not None
    gateway = next(process.address for process in state.processes if process.name == "gateway")
    with Client(gateway) as owner:
        found = parse(owner.metrics())["jellybean_requests_total"]
    rows = [(dict(labels), value) for labels, value in found.items()]
    return {labels["worker"]: value for labels, value in rows if labels["operator"] == operator}


def ask(client: Client, values: np.ndarray) -> None:
    answer = client.infer({"y": values})["sum"]
    np.testing.assert_allclose(answer, [[7.0 * values[values > 0].sum()]], rtol=1e-5)


def test_each_worker_gets_its_share_of_one_request(directory: Path) -> None:
    with Client.of(directory) as client:
        before = {name: done(directory, name) for name in ("left", "right", "join")}
        ask(client, np.arange(1, 10, dtype=np.float32).reshape(1, 9))
        for name, counts in before.items():
            more = {worker: count - counts.get(worker, 0.0) for worker, count in done(directory, name).items()}
            assert more == dict.fromkeys(ALIKE, 3.0), name


@pytest.mark.parametrize("values", [(-1.0, -2.0), (4.0,), (1.0, -1.0, 2.0), tuple(range(1, 60))])
def test_answers_are_as_without(directory: Path, values: tuple[float, ...]) -> None:
    with Client.of(directory) as client:
        for _ in range(3):
            ask(client, np.array([values], np.float32))


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_children_go_past_it(directory: Path) -> None:
    state = read_state(directory)
    assert state is not None
    victim = next(process.pid for process in state.processes if process.name == ALIKE[1])
    rng = np.random.default_rng(0)
    requests = [rng.normal(size=(1, 8)).astype(np.float32) for _ in range(300)]
    with Client.of(directory) as client:
        wait_until(lambda: client.status().state == "ready")
        failed = client.status().failed
        with ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(ask, client, values) for values in requests]
            wait_until(lambda: sum(answer.done() for answer in answers) > 20)
            os.kill(victim, signal.SIGKILL)
            for answer in answers:
                answer.result(60)
        assert client.status().failed == failed
        wait_until(lambda: client.status().state == "ready")  # it comes back, and is in the round again
        before = done(directory, "left").get(ALIKE[1], 0.0)
        ask(client, np.arange(1, 10, dtype=np.float32).reshape(1, 9))
        assert done(directory, "left")[ALIKE[1]] == before + 3.0
