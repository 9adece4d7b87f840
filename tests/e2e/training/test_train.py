"""`jellybean train`: one process, many by torchrun, going on, on other schedules, after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason=NotInstalled.SCIKIT_LEARN)

from jellybean.cli import run
from tests.support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "pipeline"
QUICK = ("device=cpu", "lr_schedule.name=constant", "lr_schedule.warmup=0", "batch=240", "optimizer.lr=0.005")


@pytest.fixture
def project(tmp_path):
    torch.set_num_threads(1)
    shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("training", "__pycache__"))
    return tmp_path / "project"


def _command(project: Path, *values: str) -> list[str]:
    options = [part for value in (*QUICK, *values) for part in ("--set", value)]
    return ["-m", "jellybean", "train", str(project), "--json", *options]


def _train(project: Path, *values: str) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [sys.executable, *_command(project, *values)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "said": done.stderr}


def _losses(*runs: dict[str, Any]) -> list[float]:
    return [loss for run in runs for epoch in run["epochs"] for loss in epoch["losses"]]


def _train_here(capsys: pytest.CaptureFixture[str], project: Path, *values: str) -> dict[str, Any]:
    """In this process, which has torch already."""
    assert run(_command(project, *values)[2:]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.nightly
def test_going_on_with_another_schedule_gives_the_same_losses(project, capsys):
    """An epoch on one process, then one by 1F1B on two: as two epochs on one."""
    whole = _train_here(capsys, project, "epochs=2")
    shutil.rmtree(project / "training")
    begun = _train_here(capsys, project, "epochs=1")
    ended = _train(project, "epochs=2", "devices=2", "schedule=1f1b")
    assert ended["schedule"] == "1f1b"
    assert "resuming from" in ended["said"]
    assert _losses(begun, ended) == pytest.approx(_losses(whole), rel=1e-4)
    assert ended["epochs"][-1]["accuracy"] == pytest.approx(whole["epochs"][-1]["accuracy"], abs=1.0)
    assert list((project / "training" / "logs").glob("events.out.tfevents.*"))


LITTLE = """\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}
"""


def test_fewer_updates_an_epoch_lose_no_checkpoint(project, capsys):
    """Epochs are what is counted, whatever the batch; another optimizer has no state to resume from."""
    (project / "little.py").write_text(LITTLE, encoding="utf-8")
    little, folder = ("model=little.py:net", "data=little.py:data"), project / "training" / "checkpoints"
    _train_here(capsys, project, *little, "epochs=2", "batch=16", "optimizer.name=sgd", "optimizer.momentum=0.9")
    again = ("batch=96", "epochs=3", "checkpoint.keep=1")
    assert run(_command(project, *little, *again, "optimizer.name=adam")[2:]) != 0
    said = capsys.readouterr().err
    assert "epoch-2 has the state of sgd, which adam cannot use" in " ".join(said.split())
    went_on = _train_here(capsys, project, *little, *again, "optimizer.name=sgd", "optimizer.momentum=0.9")
    assert [epoch["number"] for epoch in went_on["epochs"]] == [3]
    assert [path.name for path in folder.iterdir()] == ["epoch-3"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16-weights"])
def test_mixed_precision_resumes_exactly(project, capsys, precision):
    """Master weights and the loss scale are in the checkpoint."""
    (project / "little.py").write_text(LITTLE, encoding="utf-8")
    little = ("model=little.py:net", "data=little.py:data", "batch=24", f"precision={precision}")
    whole = _train_here(capsys, project, *little, "epochs=3")
    manifest = json.loads(
        (project / "training" / "checkpoints" / "epoch-3" / "manifest.json").read_text(encoding="utf-8")
    )
    assert (manifest["loss_scale"] or {}).get("finite_updates", 0) == (12 if precision == "float16" else 0)
    shutil.rmtree(project / "training")
    begun = _train_here(capsys, project, *little, "epochs=1")
    assert _losses(begun, _train_here(capsys, project, *little, "epochs=3")) == _losses(whole)
    assert _losses(whole)[-1] < _losses(whole)[0]


def test_float16_needs_a_schedule_that_flushes(project, capsys):
    (project / "little.py").write_text(LITTLE, encoding="utf-8")
    little = ("model=little.py:net", "data=little.py:data", "precision=float16", "schedule=pipedream")
    assert run(_command(project, *little)[2:]) != 0
    assert "float16 must skip an update in all stages" in " ".join(capsys.readouterr().err.split())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_killed_in_the_middle_of_a_save(project):
    """Twenty times, at every second save since it went on, a rank is killed while a checkpoint is being written."""
    (project / "little.py").write_text(LITTLE, encoding="utf-8")
    wanted = ("epochs=60", "devices=2", "schedule=1f1b", "batch=32", "model=little.py:net", "data=little.py:data")
    undisturbed = _train(project, *wanted)
    shutil.rmtree(project / "training")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--max-restarts=30", "--monitor-interval=0.1"]
    with subprocess.Popen(
        [*launcher, *options, *_command(project, *wanted)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"OMP_NUM_THREADS": "1", **os.environ},
    ) as launched:
        kills, folder, saves = 0, project / "training" / "checkpoints", list[str]()
        while launched.poll() is None and kills < 20:
            now = [path.name for path in folder.glob(".epoch-*.partial")] if folder.exists() else []
            if now and now != saves[-1:]:
                saves += now
            if now and len(saves) == 2:
                one = psutil.Process(launched.pid).children()[kills % 2]
                one.send_signal(signal.SIGKILL)
                one.wait()
                kills += 1
                while any(folder.glob(".epoch-*.partial")) and launched.poll() is None:  # until it goes on
                    time.sleep(0.01)
                saves = []
            time.sleep(0.0005)
        launched.communicate(timeout=900)
    assert kills == 20
    assert launched.returncode == 0
    lines = (project / "training" / "logs" / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    told = [(epoch["number"], epoch["losses"]) for epoch in map(json.loads, lines)]
    assert told == [(epoch["number"], epoch["losses"]) for epoch in undisturbed["epochs"]]  # bit for bit, each once
