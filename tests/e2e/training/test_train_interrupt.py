"""`jellybean train` that is interrupted before training begins: one line more, and the signal's status."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.support.training_runs import rank_processes, start_training, wait_while_it_runs, write_project

pytestmark = pytest.mark.slow

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
epochs: 2
batch: 32
microbatches: 2
optimizer: {name: adam, lr: 0.01}
"""
NETS = """\
def net(): ...
def data(): ...
raise AssertionError("interrupted before the model is loaded")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_torch_is_imported(tmp_path: Path, number: signal.Signals) -> None:
    project = write_project(tmp_path, DOCUMENT, NETS)
    run = start_training(project)
    maps = Path(f"/proc/{run.pid}/maps")
    wait_while_it_runs(run, lambda: "libtorch_cpu" in maps.read_text(encoding="utf-8"))
    os.killpg(run.pid, number)
    out, said = run.communicate(timeout=60)
    assert (run.returncode, out) == (128 + number, "")
    assert said == "importing torch\nstopped before the first checkpoint; the same command starts from scratch\n"


@pytest.mark.parametrize(
    "options", [("devices=2",), ("replicas=2", "microbatches=1", "sync={way: parameter-server, servers: 1}")]
)
def test_processes_that_are_interrupted_while_they_start_are_silent(tmp_path: Path, options: tuple[str, ...]) -> None:
    project = write_project(tmp_path, DOCUMENT, NETS)
    run = start_training(project, *(part for option in options for part in ("--set", option)))
    wait_while_it_runs(run, lambda: len(rank_processes(run)) >= 2)
    ranks = rank_processes(run)
    os.killpg(run.pid, signal.SIGINT)
    out, said = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "")
    assert said.endswith("stopped before the first checkpoint; the same command starts from scratch\n")
    assert "Traceback" not in said and "interrupted" not in said.replace("stopped", "")
    assert not [rank for rank in ranks if rank.is_running()]
