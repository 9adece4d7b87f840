"""Data sets and streams train as the same rows in memory do; ranks that read different rows are stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.integration.training.data_cases import TrainOn
from tests.integration.training.ranks import run_ranks

NO_FLUSH = "pipedream"
# Without a flush a layer's stage sets the age of its weights, and balanced stages follow measured times.
STAGES = {"stages": [{"layers": ["0"], "devices": [0]}, {"layers": ["3", "5"], "devices": [1]}]}
CASES = {
    "arrays": TrainOn("arrays", ""),
    "data sets": TrainOn("data_sets", ""),
    "in order": TrainOn("in_order", ""),
    "stream": TrainOn("streams", ""),
    "arrays, 2 replicas": TrainOn("arrays", "", replicas=2),
    "data sets, 2 replicas": TrainOn("data_sets", "", replicas=2),
    "in order, no flush": TrainOn("in_order", "", schedule=NO_FLUSH, lr_schedule="OneCycleLR"),
    "stream, no flush": TrainOn("streams", "", schedule=NO_FLUSH, lr_schedule="OneCycleLR"),
    "tokens": TrainOn("padded_in_order", "", model="per_token"),
    "tokens, 2 replicas": TrainOn("padded_in_order", "", model="per_token", replicas=2),
    "token stream, 2 replicas": TrainOn("padded_streams", "", model="per_token", replicas=2),
    "of this process": TrainOn("of_this_process", ""),
    "unseeded": TrainOn("unseeded", ""),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all ranks returned, by case; the ranks of each agree."""
    folder: Path = tmp_path_factory.mktemp("data")
    plan = folder / "plan.json"
    plan.write_text(json.dumps(STAGES), encoding="utf-8")
    cases = [
        replace(case, folder=str(folder / str(number)), plan=str(plan) if case.schedule == NO_FLUSH else "")
        for number, case in enumerate(CASES.values())
    ]
    found = run_ranks(2, cases)
    for first, second in found:
        assert first == second
    return {name: first for name, (first, _) in zip(CASES, found, strict=True)}


def test_a_data_set_trains_as_its_arrays_do(outcomes):
    assert outcomes["data sets"] == outcomes["arrays"]
    assert outcomes["data sets, 2 replicas"] == outcomes["arrays, 2 replicas"]
    assert outcomes["arrays"][1][0][-1] < outcomes["arrays"][0][0][0]


def test_a_stream_trains_as_its_rows_in_order_do(outcomes):
    assert outcomes["stream"] == outcomes["in order"]
    assert outcomes["stream, no flush"] == outcomes["in order, no flush"]
    assert outcomes["stream"] != outcomes["arrays"]


def test_tokens_of_a_stream_weigh_as_in_one_pipeline(outcomes):
    assert outcomes["token stream, 2 replicas"] == outcomes["tokens, 2 replicas"]
    for one, other in zip(outcomes["tokens, 2 replicas"], outcomes["tokens"], strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-10)
        assert one[1:] == pytest.approx(other[1:], rel=1e-10)


def test_ranks_that_read_different_rows_are_stopped(outcomes):
    told = "is not deterministic: ranks 0 and 1 read different rows"
    assert f"of_this_process {told} in epoch 1" in outcomes["of this process"]
    assert f"unseeded {told} before training" in outcomes["unseeded"]
