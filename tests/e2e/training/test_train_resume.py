"""A run that is killed in the middle of an epoch goes on there: the same losses, each sample once."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.cli import run as command
from tests.support.training_runs import (
    SLOW_LOSS,
    checkpoints,
    logged_epochs,
    rank_processes,
    start_training,
    write_project,
)

pytestmark = pytest.mark.slow

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: {function: nets.py:data, rows_per_epoch: 320, workers: 1}
loss: nets.py:loss
epochs: 2
batch: 16
microbatches: 2
optimizer: {name: NAdam, lr: 0.01}
lr_schedule: {name: OneCycleLR, max_lr: 0.02}
devices: 2
schedule: 1f1b
checkpoint: {updates: 4}
"""
NETS = f"""\
import os
import signal
from pathlib import Path

import torch

def net():
    drop = torch.nn.Dropout(float(os.environ.get("DROPOUT", "0")))
    first = torch.nn.Linear(9, 32, bias=False)  # a bias before batch normalisation follows rounding errors only
    layers = [first, torch.nn.BatchNorm1d(32), torch.nn.Tanh(), drop]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 3))

def rows(epoch):
    generator = torch.Generator().manual_seed(epoch)
    while True:
        row = torch.randn(9, generator=generator)
        yield row + 0.1 * torch.rand(9), int(row[:3].argmax())

def data():
    test = torch.randn(96, 9, generator=torch.Generator().manual_seed(9))
    return {{"train": rows, "test": (test, test[:, :3].argmax(1))}}
{SLOW_LOSS}
slow_loss = loss

def loss(outputs, targets):  # its process is killed once, as soon as there is a checkpoint within the second epoch
    folder, killed = Path(__file__).parent / "training" / "checkpoints", os.environ.get("KILLED")
    if killed and any(folder.glob("epoch-1-update-*")) and not os.path.exists(killed):
        Path(killed).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return slow_loss(outputs, targets)
"""


def _project(folder: Path) -> Path:
    return write_project(folder, DOCUMENT, NETS)


def _start(
    project: Path,
    *values: str,
    slowly: float = 0.0,
    dropout: float = 0.0,
    restarts: int | None = None,
    killed: Path | None = None,
) -> subprocess.Popen[str]:
    """`restarts`: by torchrun, which restarts as often as that. `killed`: a file of the rank that is killed once."""
    options = [part for value in values for part in ("--set", value)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher = [*torchrun, f"--max-restarts={restarts}", "--monitor-interval=0.1"] if restarts is not None else []
    environment = {"DROPOUT": str(dropout), **({"KILLED": str(killed)} if killed is not None else {})}
    return start_training(project, *options, slowly=slowly, launcher=launcher, environment=environment)


def _epochs(project: Path) -> list[tuple[int, list[float], float, float]]:
    """(number, losses, accuracy, test loss) of each epoch, from the log."""
    return [(one["number"], one["losses"], one["accuracy"], one["test_loss"]) for one in logged_epochs(project)]


def _within_an_epoch(project: Path) -> set[str]:
    """Names of the checkpoints within an epoch."""
    return {path.name for path in checkpoints(project).glob("epoch-*-update-*")}


def _run_here(project: Path, *values: str) -> int:
    """In this process; its status."""
    options = [part for value in ("devices=1", *values) for part in ("--set", value)]
    return command(["train", str(project), *options])


def test_a_rank_is_killed_in_the_middle_of_an_epoch(tmp_path):
    """Compared with an undisturbed run on one process."""
    whole = _project(tmp_path / "whole")
    assert _run_here(whole, "data.workers=0") == 0
    project = _project(tmp_path / "killed")
    run = _start(project, killed=tmp_path / "killed.txt")
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    said = " ".join(said.split())
    assert "rank 1 was killed by SIGKILL; restarting all ranks from the newest checkpoint (1 of 3)" in said
    assert "of epoch 2" in said[said.index("resuming from") :]
    for (number, losses, _, test_loss), expected in zip(_epochs(project), _epochs(whole), strict=True):
        assert number == expected[0]
        assert losses == pytest.approx(expected[1], rel=1e-4)
        assert test_loss == pytest.approx(expected[3], rel=1e-4)
        assert len(losses) == 20


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_killed_in_the_middle_of_epochs_twenty_times(tmp_path):
    """A rank in turn, a while after each new checkpoint within an epoch; the run goes on from each of them."""
    values = ("epochs=6", "checkpoint.updates=3", "checkpoint.keep=1000")
    whole = _project(tmp_path / "whole")
    undisturbed = _start(whole, *values, dropout=0.1)
    assert undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0
    project, kills, seen = _project(tmp_path / "killed"), 0, set[str]()
    run = _start(project, *values, slowly=0.02, dropout=0.1, restarts=40)
    while run.poll() is None and kills < 20:
        new = _within_an_epoch(project) - seen
        if new:
            time.sleep(0.01 * (kills % 7))
            seen |= _within_an_epoch(project)
            ranks = rank_processes(run)
            if len(ranks) == 2:
                ranks[kills % 2].send_signal(signal.SIGKILL)
                ranks[kills % 2].wait()
                kills += 1
        time.sleep(0.002)
    _, said = run.communicate(timeout=900)
    assert kills == 20
    assert run.returncode == 0, said[-3000:]
    assert _epochs(project) == _epochs(whole)  # bit for bit


def test_the_rest_of_an_epoch_keeps_its_batch(tmp_path, capsys):
    """Another batch would repeat samples or leave some out; another number of devices does not."""
    project = _project(tmp_path / "project")
    values = ("epochs=1", "checkpoint.updates=8", "data.workers=0")
    assert _run_here(project, *values) == 0
    folder = checkpoints(project)
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-0-update-16", "epoch-1"]
    (folder / "epoch-1").rename(tmp_path / "away")
    before = _epochs(project)
    capsys.readouterr()
    assert _run_here(project, *values, "batch=32") != 0
    assert "is in the middle of an epoch with batch 16, which is 32 now" in " ".join(capsys.readouterr().err.split())
    assert _run_here(project, *values, "schedule=pipedream") != 0
    assert "checkpoint.updates: pipedream runs an epoch without" in " ".join(capsys.readouterr().err.split())
    assert _run_here(project, *values) == 0
    assert _epochs(project) == before


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_the_rest_of_an_epoch_on_other_devices(tmp_path, schedule):
    project, whole = _project(tmp_path / "project"), _project(tmp_path / "whole")
    values = ("epochs=1", "checkpoint.updates=8", "data.workers=0")
    for place in (project, whole):
        assert _run_here(place, *values) == 0
    folder = checkpoints(project)
    (folder / "epoch-1").rename(tmp_path / "away")
    run = _start(project, *values, f"schedule={schedule}")
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert "after update 16 of epoch 1" in " ".join(said.split())
    ((_, losses, _, test_loss),), ((_, expected, _, expected_test),) = _epochs(project), _epochs(whole)
    assert losses[:16] == expected[:16]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert test_loss == pytest.approx(expected_test, rel=1e-4)
