"""`jellybean train` with a parameter server: weights as by all_reduce, bytes counted, workers die and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from safetensors.torch import load_file

from jellybean_solver.pipeline import count_traffic
from jellybean_solver.pipeline.collectives.ways import parameter_server
from tests.support.command_line import jellybean
from tests.support.training_runs import (
    checkpoints,
    logged_epochs,
    run_training,
    wait_while_it_runs,
    write_project,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NIGHTLY = pytest.mark.nightly
WHOLE = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
metrics: []
epochs: 2
batch: 4
optimizer: {name: sgd, lr: 1}
checkpoint: {keep: 1}
"""
WHOLE_NETS = """\
import torch

def net():
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)).double()
    maker = torch.Generator().manual_seed(3)
    for value in model.parameters():
        value.data.copy_(torch.randint(-1, 2, value.shape, generator=maker))
    return model

def data():
    rows = torch.randint(-2, 3, (12, 5), generator=torch.Generator().manual_seed(1)).double()
    return {"train": (rows, rows[:, :3]), "test": (rows, rows[:, :3])}

def loss(outputs, targets):  # gradients are whole numbers that grow slowly: each row of an update counts 1
    return 4 * (outputs * outputs.detach().sign()).sum(1).mean()
"""
SIZE_BYTES, UPDATES = 8 * (5 * 7 + 7 + 7 * 3 + 3), 3


def _train(folder: Path, *options: str, status: int = 0) -> dict[str, Any]:
    """What `--json` says; `said` has the lines for people."""
    done = run_training(folder, "--json", *options, status=status)
    return {**json.loads(done.stdout), "said": " ".join(done.stderr.split())}


def _weights(project: Path) -> dict[str, torch.Tensor]:
    return load_file(project / "training" / "model.safetensors")


@pytest.mark.parametrize(
    ("workers", "servers"), [(2, 1), pytest.param(3, 2, marks=NIGHTLY), pytest.param(4, 1, marks=NIGHTLY)]
)
def test_bsp_has_the_bits_of_all_reduce_and_the_bytes_of_the_formula(tmp_path, workers, servers):
    """Whole numbers in float64 have one sum, in whatever order; with 3 workers the shares of a batch are 2, 1 and 1."""
    document = WHOLE + f"replicas: {workers}\n"
    expected = write_project(tmp_path / "torch", document, WHOLE_NETS)
    sync = f"sync: {{way: parameter-server, servers: {servers}}}\n"
    served = write_project(tmp_path / "server", document + sync, WHOLE_NETS)
    before = _train(expected)["epochs"]
    epochs = _train(served)["epochs"]
    assert epochs[-1]["losses"][-1] < 2**53
    for name, value in _weights(expected).items():
        assert value.abs().max() > 1  # as they began
        assert torch.equal(value, value.round())
        assert torch.equal(_weights(served)[name], value)
    traffic = count_traffic(parameter_server(workers, servers), SIZE_BYTES)
    for epoch, other in zip(epochs, before, strict=True):
        assert epoch["losses"] == other["losses"]
        assert epoch["test_loss"] == other["test_loss"]
        assert len(epoch["sync_bytes"]) == workers + servers
        assert epoch["sync_bytes"][:workers] == [UPDATES * sent for sent in traffic.sent[:workers]]
        assert sum(epoch["sync_bytes"]) == UPDATES * traffic.total_bytes


DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
epochs: 3
batch: 24
microbatches: 2
replicas: 3
optimizer: {name: adam, lr: 0.01}
ema: 0.9
"""
NETS = """\
import os
import time
import traceback

import torch

def net():
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Linear(9, 64, bias=False),
        torch.nn.BatchNorm1d(64),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 3),
    )

def data():
    rows = torch.randn(192, 9, generator=torch.Generator().manual_seed(1))
    numbered = torch.cat([rows, torch.arange(192.0)[:, None]], 1)
    return {"train": (numbered[:, :9], numbered[:, [0, 1, 2, 9]]), "test": (rows, numbered[:, [0, 1, 2, 9]])}

def loss(outputs, targets):
    tried = any(frame.name == "set_up_run" for frame in traceback.extract_stack())
    if outputs.requires_grad and not tried and os.environ.get("ROWS"):
        time.sleep(float(os.environ["SLOWLY"]) * (1 + (os.environ["RANK"] == "0")))
        with open(os.environ["ROWS"], "a") as lines:
            hold = os.environ["ROWS"] + ".hold"  # while it is there, all are slow, until worker 1 is back
            if os.environ["RANK"] == "1" and os.path.exists(hold):
                os.unlink(hold)
            time.sleep(2 * os.path.exists(hold))
            lines.write(os.environ["RANK"] + " " + " ".join(str(int(row)) for row in targets[:, 3]) + "\\n")
    return torch.nn.functional.cross_entropy(outputs, targets[:, :3].argmax(1))
"""
SERVED_BYTES = 4 * (9 * 64 + 64 + 64 + 64 * 3 + 3)


@NIGHTLY
@pytest.mark.parametrize(("servers", "clip"), [(1, "clip: 1\n"), (2, "")])
def test_bsp_goes_on_as_all_reduce_does_and_resumes_within_an_epoch(tmp_path, servers, clip):
    """Adam, dropout, running statistics, clipping and averages: as the replicas of another way."""
    document = DOCUMENT + clip
    expected = write_project(tmp_path / "torch", document, NETS)
    sync = f"sync: {{way: parameter-server, servers: {servers}}}\n"
    served = write_project(tmp_path / "server", document + sync, NETS)
    before = _train(expected)["epochs"]
    first = _train(served, "--set", "epochs=1", "--set", "checkpoint={updates: 3}")["epochs"]
    (checkpoints(served) / "epoch-1").rename(tmp_path / "epoch-1")
    rest = _train(served, "--set", "checkpoint={updates: 3}")
    assert "update 6" in rest["said"]
    epochs = rest["epochs"]
    assert first[0]["losses"] == pytest.approx(epochs[0]["losses"], rel=1e-5)
    for epoch, other in zip(epochs, before, strict=True):
        assert epoch["losses"] == pytest.approx(other["losses"], rel=1e-4)
        assert epoch["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4)
    for name, value in _weights(expected).items():
        assert torch.allclose(_weights(served)[name], value, rtol=1e-3, atol=1e-4), name


@NIGHTLY
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_rows_of_a_data_set_are_read_as_they_are_handed_out_and_a_stream_is_refused(tmp_path, kind):
    wrapped = {
        "map": "torch.utils.data.TensorDataset(*rows[part])",
        "stream": "Stream(*rows[part])",
    }
    nets = (
        NETS.replace("def data():", "def memory():")
        + f"""
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, *columns):
        self.columns = columns
    def __len__(self):
        return len(self.columns[0])
    def __iter__(self):
        return zip(*self.columns)

def data():
    rows = memory()
    return {{part: {wrapped[kind]} for part in rows}}
"""
    )
    served = write_project(tmp_path / "server", DOCUMENT + "sync: {way: parameter-server}\n", nets)
    if kind == "stream":
        assert "a stream has one order" in _train(served, status=1)["error"]["message"]
        return
    expected = write_project(tmp_path / "torch", DOCUMENT, nets)
    for epoch, other in zip(_train(served)["epochs"], _train(expected)["epochs"], strict=True):
        assert epoch["losses"] == pytest.approx(other["losses"], rel=1e-4)


def _started(tmp_path: Path, sync: str) -> tuple[subprocess.Popen[str], Path]:
    """A run of six epochs that has done one, and its project. Rows of micro-batches are written to `tmp_path`/rows."""
    project = write_project(tmp_path / "server", DOCUMENT + sync, NETS)
    run = subprocess.Popen(
        [sys.executable, "-m", "jellybean", "train", str(project), "--json", "--set", "epochs=6"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROWS": str(tmp_path / "rows"), "SLOWLY": "0.1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    wait_while_it_runs(run, (checkpoints(project) / "epoch-1").exists)
    return run, project


def _process(run: subprocess.Popen[str], rank: int) -> psutil.Process:
    return next(one for one in psutil.Process(run.pid).children() if one.environ()["RANK"] == str(rank))


@pytest.mark.parametrize(
    "mode", ["bsp, servers: 2", pytest.param("asp", marks=NIGHTLY), pytest.param("asp, staleness: 1", marks=NIGHTLY)]
)
def test_a_worker_that_is_killed_comes_back_and_every_row_counts_once(tmp_path, mode):
    run, project = _started(tmp_path, "sync: {way: parameter-server, mode: " + mode + "}\n")
    victim = _process(run, 1)
    victim.send_signal(signal.SIGKILL)
    psutil.wait_procs([victim])
    (tmp_path / "rows.hold").touch()
    out, said = run.communicate(timeout=600)
    said = " ".join(said.split())
    assert run.returncode == 0, said
    assert "worker 1 was killed by SIGKILL; worker 1 starts again (1 of 3), and the others go on" in said
    assert "lost worker 1" in said
    assert "worker 1 is back" in said
    assert "restarting all" not in said
    epochs = logged_epochs(project)
    assert [epoch["number"] for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    updates = 8 if "bsp" in mode else 24
    assert all(len(epoch["losses"]) == updates for epoch in epochs)
    assert json.loads(out)["epochs"] == epochs
    computed = [line.split() for line in (tmp_path / "rows").read_text(encoding="utf-8").splitlines()]
    pushes = sum(sum(epoch["sync_bytes"][:3]) for epoch in epochs) // SERVED_BYTES
    assert pushes == 6 * 24  # what the killed worker had begun was computed once more, and counted once
    assert 6 * 24 * 2 <= len(computed) <= 6 * 24 * 2 + 2
    counts: dict[str, int] = {}
    for _, *numbers in computed:
        for number in numbers:
            counts[number] = counts.get(number, 0) + 1
    assert len(counts) == 192
    assert min(counts.values()) == 6
    assert sum(counts.values()) <= 192 * 6 + 8


@NIGHTLY
@pytest.mark.parametrize(
    ("rank", "number", "expected"),
    [
        (
            1,
            signal.SIGSTOP,
            "worker 1 has sent no gradient for 20 s and is left out; if it is only slow, raise `timeout`",
        ),
        (
            3,
            signal.SIGKILL,
            "parameter server 0 was killed by SIGKILL; restarting all ranks from the newest checkpoint",
        ),
        (
            4,
            signal.SIGKILL,
            "parameter server 1 was killed by SIGKILL; restarting all ranks from the newest checkpoint",
        ),
    ],
)
def test_a_worker_that_stands_still_is_left_out_and_a_dead_server_restarts_all(tmp_path, rank, number, expected):
    sync = "timeout: 20 s\nsync: {way: parameter-server, mode: asp, servers: 2}\n"
    run, project = _started(tmp_path, sync)
    _process(run, rank).send_signal(number)
    _, said = run.communicate(timeout=600)
    assert run.returncode == 0, said
    assert expected in " ".join(said.split())
    epochs = logged_epochs(project)
    assert [epoch["number"] for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert all(len(epoch["losses"]) == 24 for epoch in epochs)
    assert all(sum(epoch["sync_bytes"][:3]) == 24 * SERVED_BYTES for epoch in epochs)


@NIGHTLY
def test_asp_gives_more_work_to_faster_workers_and_staleness_bounds_them(tmp_path):
    """Worker 0 takes twice as long as the others. With staleness 0 all compute as many work items."""
    shares: dict[str, list[int]] = {}
    for mode in ("asp", "asp, staleness: 0"):
        rows = tmp_path / f"rows {mode}"
        sync = "sync: {way: parameter-server, mode: " + mode + "}\n"
        project = write_project(tmp_path / mode, DOCUMENT.replace("epochs: 3", "epochs: 1") + sync, NETS)
        os.environ.update({"ROWS": str(rows), "SLOWLY": "0.1"})
        try:
            epochs = _train(project)["epochs"]
        finally:
            del os.environ["ROWS"], os.environ["SLOWLY"]
        assert len(epochs[0]["losses"]) == 24
        computed = [line.split() for line in rows.read_text(encoding="utf-8").splitlines()]
        assert sorted(int(number) for _, *numbers in computed for number in numbers) == list(range(192))
        shares[mode] = [sum(rank == str(worker) for rank, *_ in computed) for worker in range(3)]
    assert shares["asp, staleness: 0"] == [16, 16, 16]
    assert shares["asp"][0] < min(shares["asp"][1:])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("objective: alpa\n", "`objective` is for pipelines"),
        ("clip: 1\n", "`clip` needs the norm of all gradients"),
        ("devices: 2\n", "each replica is one process"),
        ("schedule: gpipe\n", "`schedule` is for pipelines"),
        ("staleness: true\n", "`staleness` is for pipelines"),
        ("precision: float16\n", "does not scale the loss"),
    ],
)
def test_what_a_parameter_server_does_not_do_is_refused(tmp_path, extra, message):
    project = write_project(tmp_path / "server", DOCUMENT + extra + "sync: {way: parameter-server, servers: 2}\n", NETS)
    answer = json.loads(jellybean("train", str(project), "--json", status=2).stdout)
    assert message in answer["error"]["message"]


@NIGHTLY
def test_a_model_that_cannot_be_trained_is_reported_once(tmp_path):
    nets = NETS.replace("def loss(outputs, targets):", "def loss(outputs, targets):\n    raise ValueError('no loss')")
    project = write_project(tmp_path / "server", DOCUMENT + "sync: {way: parameter-server}\n", nets)
    result = _train(project, status=1)
    assert "no loss" in result["error"]["message"]
    assert result["said"].count("no loss") == 1
