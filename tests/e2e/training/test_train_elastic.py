"""torchrun's elastic launch: a machine is lost for good, and the run goes on with fewer devices, by a new cut."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.cli import run as command
from tests.support.ports import free_port
from tests.support.training_runs import (
    SLOW_LOSS,
    checkpoints,
    logged_epochs,
    start_training,
    wait_while_it_runs,
    write_project,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
DOCUMENT = """\
kind: Training
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
epochs: 3
batch: 16
microbatches: 2
optimizer: {name: adam, lr: 0.01}
devices: 2
min_devices: 1
schedule: 1f1b
checkpoint: {updates: 4}
"""
NETS = f"""\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).double()

def data():
    rows = torch.randn(320, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {{"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}}
{SLOW_LOSS}"""


def _agent(project: Path, port: int) -> subprocess.Popen[str]:
    """One machine's torchrun, with one process; 1 or 2 machines take part."""
    rendezvous = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=elastic",
        "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
    ]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", *rendezvous]
    launcher = [*torchrun, "--max-restarts=5", "--monitor-interval=0.2"]
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return start_training(project, slowly=0.03, launcher=launcher, environment=environment)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_goes_on_with_fewer_devices(tmp_path):
    whole = write_project(tmp_path / "whole", DOCUMENT, NETS)
    assert command(["train", str(whole), "--set", "devices=1"]) == 0
    project = write_project(tmp_path / "elastic", DOCUMENT, NETS)
    port = free_port()
    stays = _agent(project, port)
    wait_while_it_runs(stays, lambda: _listens(port))  # the first agent keeps the store of the rendezvous
    lost = _agent(project, port)
    try:
        wait_while_it_runs(stays, lambda: list(checkpoints(project).glob("epoch-1-update-*")))
        for process in [*psutil.Process(lost.pid).children(recursive=True), psutil.Process(lost.pid)]:
            process.send_signal(signal.SIGKILL)
        _, said = stays.communicate(timeout=500)
    finally:
        stays.kill()
        _, before = lost.communicate()
    assert stays.returncode == 0, said
    said = " ".join(said.split())
    assert "2 stages on 2 devices" in f"{before} {said}"  # rank 0 tells, on either machine
    assert "1 stage on 1 device" in said
    assert "resuming from" in said
    for epoch, expected in zip(logged_epochs(project), logged_epochs(whole), strict=True):
        assert epoch["number"] == expected["number"]
        assert epoch["losses"] == pytest.approx(expected["losses"], rel=1e-9)
