"""`jellybean train` on three replicas that sum their gradients by messages: the losses of all_reduce, counted bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline import count_traffic, make_all_reduce
from tests.support.training_runs import logged_epochs, run_training, write_project

pytestmark = pytest.mark.slow

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: mse
epochs: 2
batch: 24
microbatches: 2
replicas: 3
optimizer: {name: sgd, lr: 0.01}
"""
NETS = """\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).double()

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1)).double()
    return {"train": (rows, rows[:, :3]), "test": (rows, rows[:, :3])}
"""
UPDATES, SIZE_BYTES = 4, 8 * (9 * 64 + 64 + 64 * 3 + 3)


def _train(folder: Path, sync: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The epochs as told by `--json` and as logged."""
    done = run_training(write_project(folder, DOCUMENT + sync, NETS), "--json")
    return json.loads(done.stdout)["epochs"], logged_epochs(folder)


@pytest.mark.nightly
def test_three_replicas_sum_by_a_ring(tmp_path):
    expected, _ = _train(tmp_path / "torch", "")
    epochs, logged = _train(tmp_path / "ring", "sync: {way: ring, bucket: 1 KiB}\n")
    for epoch, other, line in zip(epochs, expected, logged, strict=True):
        assert epoch["losses"] == pytest.approx(other["losses"], rel=1e-9)
        assert other["sync_bytes"] is None
        assert line["sync_bytes"] == epoch["sync_bytes"]
        assert len(epoch["sync_bytes"]) == 3
        traffic = count_traffic(make_all_reduce("ring", 3), SIZE_BYTES)
        assert sum(epoch["sync_bytes"]) == UPDATES * traffic.total_bytes
