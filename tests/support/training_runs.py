"""Folders and processes of `jellybean train`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_project(folder: Path, document: str, nets: str) -> Path:
    """A folder with training.yaml and nets.py; made if it is not there."""
    folder.mkdir(exist_ok=True)
    (folder / "training.yaml").write_text(document)
    (folder / "nets.py").write_text(nets)
    return folder


def checkpoints(project: Path) -> Path:
    """The folder of its checkpoints."""
    return project / "training" / "checkpoints"


def logged_epochs(project: Path) -> list[dict[str, Any]]:
    """The epochs in its log."""
    lines = (project / "training" / "logs" / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_while_it_runs(run: subprocess.Popen[str], is_there: Callable[[], object], timeout_s: float = 300.0) -> None:
    """Wait until something is there. AssertionError if the run ends before, or after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not is_there():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
