"""A neighbour of a measured part of a device: what it says first, and when it ends; and a measuring process."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean_agent import CPU, ModelError, PythonStep, find_module_source, sample_file
from jellybean_agent.errors import CrashError
from jellybean_agent.measuring.job import Job
from jellybean_agent.measuring.neighbours import _require_running, _run_in_loop
from jellybean_agent.measuring.processes import measured_lines

CAST = "jellybean_agent.steps:cast"
STEP = PythonStep(CAST, '{"to": "int64", "dtype": "float32", "shape": 2}', frozenset())
SHA256 = find_module_source("jellybean_agent.steps").sha256
INPUTS: Any = [(np.zeros((1, 2), np.float32),)]


@pytest.fixture
def _sigint() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_neighbour_runs_until_its_parent_closes(_sigint: None) -> None:
    parent, neighbour = multiprocessing.Pipe()
    said: list[str] = []

    def wait() -> None:
        said.append(parent.recv())
        parent.close()

    thread = threading.Thread(target=wait)
    thread.start()
    _run_in_loop(neighbour, STEP, SHA256, {"x": ""}, CPU, INPUTS)
    thread.join()
    assert said == [""]
    neighbour.close()


def test_a_neighbour_that_cannot_run_says_why(_sigint: None) -> None:
    parent, neighbour = multiprocessing.Pipe()
    _run_in_loop(neighbour, STEP, "0" * 64, {"x": ""}, CPU, INPUTS)
    with pytest.raises(ModelError, match=r"^another part of device cpu, which is kept busy meanwhile: .*sha256"):
        _require_running(parent, CPU)
    neighbour.close()
    with pytest.raises(ModelError, match=r"meanwhile: its process died$"):
        _require_running(parent, CPU)
    parent.close()
    parent, neighbour = multiprocessing.Pipe()
    neighbour.send("")
    _require_running(parent, CPU)
    parent.close()
    neighbour.close()


def job(folder: Path, **content: Any) -> Job:
    path = folder / "sample"
    path.write_bytes(sample_file([(np.full((1, 2), value, np.float32),) for value in range(4)]))
    standard: dict[str, Any] = {
        "path": "",
        "sha256": SHA256,
        "function": CAST,
        "arguments": STEP.arguments,
        "upstreams": {"x": ""},
        "device": ("cpu", ()),
        "sample": str(path),
        "points": ((1, 0.0, (0, 1)), (2, 0.0, (1,))),
        "folders": tuple(sys.path),
        "memory_bytes": 2**30,
        "memory": True,
    }
    return Job(**{**standard, **content})


async def lines_of(what: Job, limit_s: float = 60.0) -> list[dict[str, Any]]:
    return [line async for line in measured_lines(what, limit_s)]


def test_a_process_measures_memory_first_then_block_by_block(tmp_path: Path) -> None:
    memory, *timed = asyncio.run(lines_of(job(tmp_path)))
    assert memory["memory_bytes"] >= 4096
    assert memory["device_memory_bytes"] is None
    assert [(line["batch"], line["block"], len(line["seconds"])) for line in timed] == [(1, 0, 2), (1, 1, 2), (2, 1, 2)]


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(CrashError, match=r"measuring took longer than 0.01 s without a result, and was ended"):
        asyncio.run(lines_of(job(tmp_path), 0.01))
