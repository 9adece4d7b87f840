"""`jellybean train` with early stopping ends with the weights of the best epoch, whose checkpoint is kept for it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from safetensors.torch import load_file

from jellybean.cli import run
from tests.support.training_runs import (
    CLASSES,
    SLOW_LOSS,
    checkpoints,
    logged_epochs,
    start_training,
    wait_while_it_runs,
    write_project,
)

pytestmark = pytest.mark.slow

# The rate rises until the loss gets worse: the second epoch is the best, and the run stops after the fifth.
DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
epochs: 10
batch: 16
microbatches: 2
optimizer: {name: sgd, lr: 0.1}
lr_schedule: {name: OneCycleLR, max_lr: 4.0, pct_start: 0.9, div_factor: 1000}
early_stop: {metric: loss, patience: 3}
checkpoint: {every: 4, keep: 1}
schedule: 1f1b
"""
NETS = f"""\
import torch

def net():
    norm = torch.nn.BatchNorm1d(16)
    return torch.nn.Sequential(torch.nn.Linear(9, 16), norm, torch.nn.Tanh(), torch.nn.Linear(16, 3))
{CLASSES}{SLOW_LOSS}"""
Weights = dict[str, Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return write_project(tmp_path, DOCUMENT, NETS)


def _model(project: Path) -> Weights:
    return dict(load_file(project / "training" / "model.safetensors"))


def _saved(checkpoint: Path) -> Weights:
    """Weights and buffers in a checkpoint."""
    found = {name: value for path in checkpoint.glob("*.safetensors") for name, value in load_file(path).items()}
    return {name.partition("/")[2]: v for name, v in found.items() if name.startswith(("weight/", "buffer/"))}


def _are_equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _best(project: Path) -> int:
    """The epoch with the smallest test loss, of all that were trained."""
    losses = [epoch["test_loss"] for epoch in logged_epochs(project)]
    return 1 + losses.index(min(losses))


def test_a_run_that_gets_worse_ends_with_its_best_epoch(project, capsys):
    assert run(["train", str(project)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped after epoch 5" in said
    assert "the trained model has the weights of epoch 2, the best" in said
    assert _best(project) == 2
    folder = checkpoints(project)
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-2", "epoch-5"]
    assert _are_equal(_model(project), _saved(folder / "epoch-2"))
    assert not _are_equal(_model(project), _saved(folder / "epoch-5"))
    assert run(["train", str(project), "--set", "early_stop.restore=last"]) == 0
    assert _are_equal(_model(project), _saved(folder / "epoch-5"))
    assert run(["train", str(project)]) == 0
    assert _are_equal(_model(project), _saved(folder / "epoch-2"))
    (folder / "epoch-2" / "rank-0.safetensors").write_bytes(b"damaged")
    capsys.readouterr()
    assert run(["train", str(project)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "the weights of the best epoch cannot be restored" in said
    assert "early_stop.restore=last ends with those of the last epoch" in said


def test_a_run_that_does_all_its_epochs_ends_with_the_best(project):
    assert run(["train", str(project), "--set", "early_stop.patience=20"]) == 0
    folder = checkpoints(project)
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-10", "epoch-2"]
    assert _best(project) == 2
    assert _are_equal(_model(project), _saved(folder / "epoch-2"))


def test_the_end_reports_the_epoch_whose_weights_the_model_has(project, capsys):
    """In the line and in --json; the losses rise after it."""
    assert run(["train", str(project), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["epochs"]), found["model_epoch"]) == (5, 2)
    best = found["epochs"][1]
    assert run(["train", str(project), "--set", "epochs=6", "--set", "early_stop.patience=9"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"trained 1 epoch (6); the model of epoch 2 (test loss {best['test_loss']:.4f}, accuracy" in said
    assert run(["train", str(project), "--json", "--set", "early_stop.restore=last"]) == 0
    assert json.loads(capsys.readouterr().out)["model_epoch"] == 6


def test_early_stopping_that_begins_after_the_best_epoch_was_deleted(project, capsys):
    """It ends with the best epoch of those that have a checkpoint, on every resume."""
    patient = ("--set", "early_stop.patience=9")
    first = ("--set", "early_stop=null", "--set", "checkpoint={every: 1, keep: 2}")
    assert run(["train", str(project), "--set", "epochs=5", *first]) == 0
    assert _best(project) == 1
    folder = checkpoints(project)
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-4", "epoch-5"]
    for epochs in (7, 8):
        capsys.readouterr()
        assert run(["train", str(project), "--json", *patient, "--set", f"epochs={epochs}"]) == 0
        printed = capsys.readouterr()
        warned = "the checkpoint of epoch 1, the best so far, was not kept" in " ".join(printed.err.split())
        assert warned == (epochs == 7)
        losses = [epoch["test_loss"] for epoch in logged_epochs(project)]
        kept = 4 + losses[3:].index(min(losses[3:]))
        assert json.loads(printed.out)["model_epoch"] == kept
        assert _are_equal(_model(project), _saved(folder / f"epoch-{kept}"))


@pytest.mark.nightly
def test_a_run_that_is_killed_after_its_best_epoch(project):
    """All its processes, on two devices; the resumed run does not train the best epoch again."""
    killed = start_training(project, "--set", "devices=2", slowly=0.05)
    try:
        wait_while_it_runs(killed, (checkpoints(project) / "epoch-4").exists)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    best = checkpoints(project) / "epoch-2"
    manifest = (best / "manifest.json").stat().st_mtime_ns
    resumed = start_training(project, "--set", "devices=2")
    _, said = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, said
    assert "the trained model has the weights of epoch 2, the best" in " ".join(said.split())
    assert _best(project) == 2
    assert (best / "manifest.json").stat().st_mtime_ns == manifest
    assert _are_equal(_model(project), _saved(best))
