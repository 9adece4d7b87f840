"""A part of a device is measured while its other parts are busy with the same model, and they end with it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.profiler import latency
from jellybean.profiler.cache import Cache
from jellybean.profiler.latency import LatencyMeter, Point
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Model, Step, Workload
from jellybean_agent import (
    CPU,
    Device,
    ModelError,
    PythonStep,
    Share,
    busy_neighbours,
    neighbour_count,
    sample_file,
    timed_runs,
)
from jellybean_agent.measuring.timed_runs import Inputs
from jellybean_solver import Edge
from tests.support.tiny_models import scale

ORDER = {"x": ""}
SOFTMAX = "jellybean_agent.steps:softmax"
INPUTS: list[Inputs] = [(np.ones((1, 4), np.float32),)]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "double.onnx"
    return path, scale(path, 2.0)


@pytest.mark.parametrize(
    ("share", "count"),
    [
        (("slots", "2"), 1),
        (("slots", "4"), 3),
        (("mps", "25"), 3),
        (("mps", "33.3"), 2),
        (("mps", "60"), 0),
        (("mig", "1g.10gb"), 0),
    ],
)
def test_the_other_parts_of_a_device_are_its_neighbours(share: tuple[str, str], count: int) -> None:
    part = Device("cuda").part(Share(*share))
    assert neighbour_count(Path("m.onnx"), part) == count
    assert neighbour_count(PythonStep(SOFTMAX, "{}", frozenset([SOFTMAX])), part) == 0  # runs on the CPU
    assert neighbour_count(Path("m.onnx"), Device("cuda")) == 0


def test_neighbours_compute_meanwhile_and_end_after(model: tuple[Path, str]) -> None:
    before = set(multiprocessing.active_children())
    with busy_neighbours(*model, ORDER, CPU.part(Share("slots", "2")), INPUTS):
        (neighbour,) = set(multiprocessing.active_children()) - before
        times = psutil.Process(neighbour.pid).cpu_times
        began_s, until_s = times().user, time.monotonic() + 60.0
        while times().user < began_s + 0.1 and time.monotonic() < until_s:
            time.sleep(0.02)
        assert times().user >= began_s + 0.1
    assert neighbour.exitcode == 0
    assert set(multiprocessing.active_children()) == before


def test_a_neighbour_that_dies_meanwhile_is_said(model: tuple[Path, str]) -> None:
    before = set(multiprocessing.active_children())
    beside = busy_neighbours(*model, ORDER, CPU.part(Share("slots", "2")), INPUTS)
    with pytest.raises(ModelError, match="was kept busy meanwhile: its process died"), beside:
        (neighbour,) = set(multiprocessing.active_children()) - before
        neighbour.kill()
        neighbour.join()


def test_a_part_that_cannot_run_the_model_is_said(model: tuple[Path, str]) -> None:
    beside = busy_neighbours(model[0], "0" * 64, ORDER, CPU.part(Share("slots", "2")), INPUTS)
    with pytest.raises(ModelError, match=r"another part of device cpu \(share.slots=2\), .*000000"), beside:
        raise AssertionError("measured beside nobody")
    assert not multiprocessing.active_children()


def test_profile_times_a_part_beside_its_neighbours(
    model: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[int] = []

    def observed(*arguments: object) -> list[float]:
        beside.append(len(multiprocessing.active_children()))
        return timed_runs(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(latency, "timed_runs", observed)
    path, sha256 = model
    doubled = Model("net", "double", path, sha256)
    workload = Workload((Step("net", (Edge("x", "net"),), (doubled,)),), {"x": np.ones((1, 4))}, None, "top1", {})
    survey = Survey({"net": INPUTS}, {}, {}, {})
    meter = LatencyMeter(workload, survey, Cache.open(tmp_path, resume=False), 0.1)
    for device in (CPU.part(Share("slots", "2")), CPU):
        meter.measure(Point(doubled, 1.0, 1, device), 0)
    assert beside == [1, 0]


@pytest.mark.slow
def test_a_measuring_process_has_neighbours_too(model: tuple[Path, str], tmp_path: Path) -> None:
    """As on a worker that has joined. Its neighbours end with it."""
    path, sha256 = model
    (tmp_path / "sample").write_bytes(sample_file(INPUTS))
    job = {"path": str(path), "sha256": sha256, "function": "", "arguments": "", "upstreams": ORDER}
    job |= {"device": ["cpu", [["share.slots", "2"]]], "sample": str(tmp_path / "sample")}
    job |= {"points": [[1, 1.0, [0]]], "folders": sys.path, "memory_bytes": 2**40}
    command = [sys.executable, "-m", "jellybean_agent.measuring"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        neighbours: set[psutil.Process] = set()
        while process.poll() is None and not neighbours:
            children = psutil.Process(process.pid).children()
            neighbours = {child for child in children if "spawn_main" in " ".join(child.cmdline())}
            time.sleep(0.02)
        assert process.stdout is not None
        (answer,) = map(json.loads, process.stdout)
    assert (process.returncode, answer["batch"], answer["block"]) == (0, 1, 0)
    assert len(neighbours) == 1
    assert not any(neighbour.is_running() for neighbour in neighbours)
