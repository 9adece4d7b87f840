"""`jellybean train` on a CSV file, and on a stream that would not fit into memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.cli import run

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: {csv: rows.csv, target: kind}
epochs: 3
batch: 16
optimizer: {name: RMSprop, lr: 0.01, groups: [{match: "*.bias", weight_decay: 0}]}
lr_schedule: {name: OneCycleLR, max_lr: 0.02}
"""
NETS = """\
import atexit
import os
import resource
from pathlib import Path

import torch

ROWS = int(os.environ.get("ROWS", "0"))

def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

def rows(epoch):
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(ROWS // 1000):
        for row in torch.randn(1000, 3, generator=generator):
            yield row, int(row[0] > 0)

def stream():
    atexit.register(_tell_memory)
    test = torch.randn(100, 3, generator=torch.Generator().manual_seed(9))
    return {"train": rows, "test": (test, (test[:, 0] > 0).long())}

class Unreadable(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, row):
        if row == 77:
            raise OSError("the disk is gone")
        return torch.zeros(3), 0

def unreadable():
    return {"train": Unreadable(), "test": (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))}

def _tell_memory():
    folder = Path(__file__).parent / "memory"
    folder.mkdir(exist_ok=True)
    (folder / os.environ.get("RANK", "launcher")).write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    torch.set_num_threads(1)
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).tolist()
    lines = [f"{a:.5f},{b:.5f},{c:.5f},{'up' if a > b else 'down'}" for a, b, c in rows]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,kind", *lines]), encoding="utf-8")
    assert run(["train", str(tmp_path), "--json"]) == 0
    epochs = json.loads(capsys.readouterr().out)["epochs"]
    assert epochs[-1]["accuracy"] > 80
    assert epochs[-1]["samples"] == 160


def _run(folder: Path, data: str, *values: str, rows: int = 0) -> subprocess.CompletedProcess[str]:
    """On two processes."""
    folder.mkdir()
    (folder / "nets.py").write_text(NETS, encoding="utf-8")
    (folder / "training.yaml").write_text(DOCUMENT.replace("{csv: rows.csv, target: kind}", data), encoding="utf-8")
    options = [part for value in ("devices=2", *values) for part in ("--set", value)]
    return subprocess.run(
        [sys.executable, "-m", "jellybean", "train", str(folder), "--json", *options],
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1", **os.environ, "ROWS": str(rows)},
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_cannot_be_read_ends_the_run_after_a_second_try(tmp_path: Path, workers: int):
    done = _run(tmp_path / "project", f"{{function: nets.py:unreadable, workers: {workers}}}", "schedule=1f1b")
    assert done.returncode == 1
    told = json.loads(done.stdout)["error"]["message"]
    assert "nets.py:unreadable, train: reading row 77 failed at " in told
    assert told.endswith("the disk is gone (twice)")
    assert "terminate called" not in done.stderr
    assert "SIGABRT" not in done.stderr


def _peaks(folder: Path, rows: int, schedule: str) -> tuple[dict[str, Any], list[int]]:
    """The run's result, and the peak memory of each rank in KiB."""
    data = f"{{function: nets.py:stream, rows_per_epoch: {rows}, workers: 1}}"
    done = _run(folder, data, "epochs=1", "batch=1000", "microbatches=4", f"schedule={schedule}", rows=rows)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), [
        int((folder / "memory" / str(rank)).read_text(encoding="utf-8")) for rank in range(2)
    ]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream-2bw"])
def test_a_million_rows_take_no_more_memory_than_a_few(tmp_path: Path, schedule: str):
    """As tensors with their Python objects they would take above 500 MB in each process."""
    _, few = _peaks(tmp_path / "few", 20_000, schedule)
    found, many = _peaks(tmp_path / "many", 1_000_000, schedule)
    (epoch,) = found["epochs"]
    assert epoch["samples"] == 1_000_000
    assert epoch["accuracy"] > 95
    assert max(more - less for more, less in zip(many, few, strict=True)) < 48 * 1024, (few, many)
