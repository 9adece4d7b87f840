"""Folders and processes of `jellybean train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

# Functions of a nets.py: rows of three classes, and a loss that takes as long as `start_training` says.
CLASSES = """
def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}
"""
SLOW_LOSS = """
import os
import time

def loss(outputs, targets):
    time.sleep(float(os.environ.get("SLOWLY", "0")))
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


def write_project(folder: Path, document: str, nets: str) -> Path:
    """A folder with training.yaml and nets.py; made if it is not there."""
    folder.mkdir(exist_ok=True)
    (folder / "training.yaml").write_text(document, encoding="utf-8")
    (folder / "nets.py").write_text(nets, encoding="utf-8")
    return folder


def run_training(
    project: Path,
    *options: str,
    status: int = 0,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`jellybean train` to its end, which must have this status. `launcher`: what Python starts it by."""
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "jellybean", "train", str(project), *options],
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == status, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def options_of(values: Sequence[str]) -> list[str]:
    """Values of the document as options of a command."""
    return [part for value in values for part in ("--set", value)]


def start_training(
    project: Path,
    *options: str,
    slowly: float = 0.0,
    wrapper: Sequence[str] = (),
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """`jellybean train` in a session of its own. `slowly`: seconds of SLOW_LOSS. `wrapper`: what starts Python, and
    `launcher`: what Python starts it by.
    """
    return subprocess.Popen(
        [*wrapper, sys.executable, *launcher, "-m", "jellybean", "train", str(project), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # with the threads given a busy machine is not worth a line
        env={"OMP_NUM_THREADS": "1", **os.environ, "SLOWLY": str(slowly), **(environment or {})},
        start_new_session=True,
    )


def rank_processes(run: subprocess.Popen[str]) -> list[psutil.Process]:
    """A run's ranks in order; their own children are workers."""
    children = [child for child in psutil.Process(run.pid).children() if "RANK" in child.environ()]
    return sorted(children, key=lambda child: int(child.environ()["RANK"]))


def checkpoints(project: Path) -> Path:
    """The folder of its checkpoints."""
    return project / "training" / "checkpoints"


def logged_epochs(project: Path) -> list[dict[str, Any]]:
    """The epochs in its log."""
    lines = (project / "training" / "logs" / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def wait_while_it_runs(run: subprocess.Popen[str], is_there: Callable[[], object], timeout_s: float = 300.0) -> None:
    """Wait until something is there. AssertionError if the run ends before, or after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not is_there():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
