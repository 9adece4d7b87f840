"""Which inputs a measurement runs, in which batches, how often; and the growth of a process's memory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from jellybean_agent import (
    CPU,
    Block,
    Device,
    InvalidInputError,
    ModelMemory,
    PythonStep,
    Share,
    batched,
    busy_neighbours,
    find_module_source,
    memory_growth,
    neighbour_count,
    timed_runs,
)
from jellybean_agent.execution.executor import RunResult
from jellybean_agent.measuring import memory_growth as growing
from jellybean_agent.measuring import timed_runs as timing
from jellybean_agent.measuring.job import Job, read_job
from jellybean_agent.measuring.memory_growth import MIN_BYTES
from jellybean_agent.measuring.timed_runs import first_input

CAST = "jellybean_agent.steps:cast"


class Noting:
    """An executor that notes what it runs, each for 0.25 s of a clock; pauses are noted too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[Any] = []
        self.pauses = 0
        self.now_s = 100.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(timing.time, "sleep", self._pause)

    def _pause(self, seconds: float) -> None:
        assert seconds == timing.PAUSE_S
        self.pauses += 1

    def run(self, inputs: Any) -> RunResult:
        self.ran.append(inputs)
        self.now_s += 0.25
        return RunResult({}, 0.125 * len(self.ran))


@pytest.mark.parametrize(
    ("block", "ran"),
    [
        (Block(0, 1.0, 0), "abcd"),
        (Block(0, 0.0, 0), "ab"),  # at least two
        (Block(0, 0.6, 2), "aa" + "abc"),
        (Block(1, 1.0, 1), "a" + "cdea"),
        (Block(2, 0.5, 0), "bc"),
    ],
)
def test_a_block_runs_its_inputs_in_turn(monkeypatch: pytest.MonkeyPatch, block: Block, ran: str) -> None:
    executor: Any = Noting(monkeypatch)
    inputs: Any = list("abcde")
    times = timed_runs(executor, inputs, block)
    assert "".join(executor.ran) == ran
    counted = len(ran) - block.warm_up_runs
    assert times == [0.125 * (block.warm_up_runs + number) for number in range(1, counted + 1)]
    assert executor.pauses == counted


def test_blocks_begin_far_apart() -> None:
    assert [first_input(block, 8) for block in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert [first_input(block, 1) for block in range(3)] == [0, 0, 0]


def sample(*values: float) -> list[tuple[Any, ...]]:
    return [(np.full((1, 2), value, np.float32),) for value in values]


def rows(batches: Any) -> list[list[float]]:
    return [batch[0][:, 0].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("count", "batch", "groups"),
    [
        (3, 1, [[0], [1], [2]]),
        (4, 2, [[0, 1], [2, 3]]),
        (3, 2, [[0, 1], [2, 0], [1, 2]]),
        (6, 4, [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]),
        (1, 4, [[0, 0, 0, 0]]),
        (7, 5, [[0, 1, 2, 3, 4], [5, 6, 0, 1, 2]]),  # five passes would be too many
        (3, 4, [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]),
    ],
)
def test_requests_are_stacked_into_batches(count: int, batch: int, groups: list[list[float]]) -> None:
    found = rows(batched(sample(*range(count)), batch))
    assert found == groups
    if count * batch <= 12:
        counts = Counter(value for group in found for value in group)
        assert len(set(counts.values())) == 1, "every request is in as many batches"


def test_inputs_that_cannot_be_stacked() -> None:
    unlike = [(np.zeros((1, 2), np.float32),), (np.zeros((1, 3), np.float32),)]
    assert len(batched(unlike, 1)) == 2
    with pytest.raises(InvalidInputError, match="cannot be stacked into a batch"):
        batched(unlike, 2)


def job(**content: Any) -> Job:
    standard: dict[str, Any] = {
        "path": "model.onnx",
        "sha256": "ab",
        "function": "",
        "arguments": "{}",
        "upstreams": {"x": "", "z": "input"},
        "device": ("cuda:1", (("a", "b"),)),
        "sample": "sample",
        "points": ((1, 0.5, (0, 1)), (4, 0.5, (1,))),
        "folders": ("a", "b"),
        "memory_bytes": 1000,
        "memory": True,
    }
    return Job(**{**standard, **content})


def test_a_job_comes_back_from_its_text() -> None:
    for one in (job(), job(function=CAST, path="", memory=False)):
        assert read_job(json.loads(json.dumps(asdict(one)))) == one
    assert job().on_device == Device("cuda:1", (("a", "b"),))
    assert str(job().code) == "model.onnx"
    assert job(function=CAST).code == PythonStep(CAST, "{}", frozenset({CAST}))


@pytest.mark.parametrize(
    ("resident", "device", "memory"),
    [
        ((1_000_000, 1_500_000), (None, None), ModelMemory(500_000)),
        ((1_000_000, 1_000_100), (10, 50), ModelMemory(MIN_BYTES, 40)),
        ((1_000_000, 900_000), (50, 50), ModelMemory(MIN_BYTES)),
        ((0, 5000), (50, 10), ModelMemory(5000)),
        ((0, 5000), (None, 10), ModelMemory(5000)),
    ],
)
def test_memory_is_what_grows_with_the_model(
    monkeypatch: pytest.MonkeyPatch, resident: tuple[int, int], device: tuple[Any, Any], memory: ModelMemory
) -> None:
    left, left_on_device, runs = list(resident), list(device), [0]

    class Counting(growing.Executor):
        def run(self, inputs: Any, requests: int = 1) -> RunResult:
            runs[0] += 1
            return super().run(inputs, requests)

    monkeypatch.setattr(growing, "resident_bytes", lambda: left.pop(0))
    monkeypatch.setattr(growing, "used_device_bytes", lambda _: left_on_device.pop(0))
    monkeypatch.setattr(growing, "Executor", Counting)
    step = PythonStep(CAST, '{"to": "int64", "dtype": "float32", "shape": 2}', frozenset())
    sha256 = find_module_source("jellybean_agent.steps").sha256
    batches: Any = [(np.zeros((size, 2), np.float32),) for size in (1, 4)]
    assert memory_growth(step, sha256, {"x": ""}, batches, CPU) == memory
    assert runs[0] == 2 * growing.RUNS


def test_only_parts_of_a_device_that_share_it_have_neighbours(tmp_path: Any) -> None:
    model = tmp_path / "model.onnx"
    assert neighbour_count(model, CPU) == 0
    assert neighbour_count(model, Device("cuda").part(Share("slots", "4"))) == 3
    assert neighbour_count(model, Device("cuda").part(Share("mig", "1g.10gb"))) == 0
    assert neighbour_count(PythonStep(CAST, "{}", frozenset()), Device("cuda").part(Share("slots", "4"))) == 0
    with busy_neighbours(model, "", {}, CPU, []):
        pass
