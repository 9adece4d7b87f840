"""Inputs that models are timed with: a sample of all requests, and of all sizes."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jellybean.profiler import flow as flow_module
from jellybean.profiler.flow import Flow
from jellybean.profiler.latency import BLOCKS, COMPUTE_INPUTS, VARIED_INPUTS, spread_inputs
from jellybean.profiler.workload import Inputs, Model, Step, Workload
from jellybean_agent import PythonStep, steps
from jellybean_agent.measuring.timed_runs import first_input
from jellybean_solver import Edge

REQUESTS = 200


def test_inputs_are_kept_from_all_over_the_held_out_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "KEPT_INPUTS", 20)
    step = PythonStep("jellybean_agent.steps:flatten", '{"dtype": "float64", "shape": [1]}', frozenset())
    sha256 = hashlib.sha256(Path(steps.__file__).read_bytes()).hexdigest()
    model = Model("look", "flat", Path(), sha256, step, sha256)
    rows = np.arange(REQUESTS, dtype=np.float64)[:, np.newaxis]
    workload = Workload((Step("look", (Edge("x", "look"),), (model,)),), {"x": rows}, None, "top1", {})
    flow = Flow(workload)
    for request in range(REQUESTS):
        flow.answer(request, {"look": "flat"})
    kept = sorted(int(inputs[0][0, 0]) for inputs in flow.inputs["look"])
    assert len(set(kept)) == 20
    assert kept[0] < REQUESTS / 4
    assert kept[-1] > REQUESTS * 3 / 4


def lines(*widths: int) -> list[Inputs]:
    return [(np.zeros((1, width), np.uint8),) for width in widths]


def test_equal_inputs_are_timed_on_a_few() -> None:
    assert len(spread_inputs(lines(*[5] * 64))) == COMPUTE_INPUTS
    assert len(spread_inputs(lines(5))) == 1


def test_inputs_of_different_sizes_are_timed_on_all_sizes() -> None:
    widths = np.random.default_rng(1).integers(10, 1000, 64)
    chosen = [inputs[0].shape[1] for inputs in spread_inputs(lines(*widths))]
    assert len(chosen) == VARIED_INPUTS
    assert chosen == sorted(chosen)
    assert np.mean(chosen) == pytest.approx(np.mean(widths), rel=0.05)
    assert len(spread_inputs(lines(3, 9))) == 2


def test_children_of_a_gather_count_by_their_shapes() -> None:
    one, other = (tuple(np.zeros((1, width)) for width in widths) for widths in ([2], [2, 5]))
    assert len(spread_inputs([(one,), (other,)])) == 2


@pytest.mark.parametrize("inputs", [1, 3, 50, 64])
@pytest.mark.parametrize("runs", [2, 19, 64, 150])
def test_four_blocks_run_every_input_equally_often_give_or_take_one(inputs: int, runs: int) -> None:
    """With 19 runs a block, the last 24 of 64 inputs were never run, and others up to three times."""
    starts = [first_input(block, inputs) for block in range(BLOCKS)]
    times = Counter((start + run) % inputs for start in starts for run in range(runs))
    assert max(times.values()) - min(times[row] for row in range(inputs)) <= 1
