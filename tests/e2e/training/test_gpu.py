"""Training on GPUs equals training on the CPU. Skipped where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.skips import Absent

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.links import StagedLink
from jellybean.training.processes.streams import streams_of
from jellybean.training.processes.tensor_messages import TensorSpec
from jellybean_solver.pipeline import SCHEDULES
from tests.support.training_runs import options_of, run_training

_GPUS = torch.cuda.device_count()
one_gpu = pytest.mark.skipif(_GPUS < 1, reason=Absent.GPU)
two_gpus = pytest.mark.skipif(_GPUS < 2, reason=f"{Absent.GPU}: NCCL needs one for each rank, and there are {_GPUS}")
NEAR = 1e-4

NETS = """\
import torch

def net():
    layers = [part for _ in range(7) for part in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    return torch.nn.Sequential(torch.nn.Linear(32, 64), *layers, torch.nn.LayerNorm(64), torch.nn.Linear(64, 4))

def data():
    rows = torch.randn(768, 32, generator=torch.Generator().manual_seed(1))
    part = rows[:, :4].argmax(1)
    return {"train": (rows[:512], part[:512]), "test": (rows[512:], part[512:])}
"""
DOCUMENT = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 2
batch: 256
microbatches: 4
optimizer: {name: adamw, lr: 0.003}
clip: 1.0
devices: 2
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    return tmp_path


def _train(project: Path, *values: str, gpus: str | None = None) -> dict[str, Any]:
    """Train from the start; `gpus`: those that the processes see."""
    environment = {"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}
    done = run_training(project, "--json", "--fresh", *options_of(values), environment=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _results(found: dict[str, Any]) -> list[float]:
    return [value for epoch in found["epochs"] for value in (*epoch["losses"], epoch["test_loss"])]


@one_gpu
@pytest.mark.parametrize("name", SCHEDULES)
def test_two_ranks_that_share_a_gpu_train_as_on_the_cpu(project, name):
    cpu = _train(project, f"schedule={name}", "device=cpu")
    gpu = _train(project, f"schedule={name}", "device=cuda", gpus="0")
    assert _results(gpu) == pytest.approx(_results(cpu), rel=NEAR)


@two_gpus
@pytest.mark.parametrize("name", SCHEDULES)
def test_ranks_with_gpus_of_their_own_train_as_on_the_cpu(project, name):
    cpu = _train(project, f"schedule={name}", "device=cpu")
    assert _results(_train(project, f"schedule={name}", gpus="0,1")) == pytest.approx(_results(cpu), rel=NEAR)


@one_gpu
@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16-weights", "float16"])
def test_mixed_precision_learns_on_a_gpu(project, precision):
    found = _train(project, f"precision={precision}", "schedule=1f1b", "device=cuda", "epochs=6", gpus="0")
    assert found["epochs"][-1]["test_loss"] < found["epochs"][0]["test_loss"] - 0.05


@one_gpu
def test_fewer_gpus_than_processes_are_refused(project):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "jellybean", "train", str(project), "--fresh"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert "2 processes on this machine and 1 GPU: each needs its own" in " ".join(done.stderr.split())


class _Mail:
    """Messages of a rank to itself, as gloo's."""

    def __init__(self) -> None:
        self._sent: list[torch.Tensor] = []

    def send(self, tensor, peer, tag):
        self._sent.append(tensor.clone())
        return self

    def receive(self, tensor, peer, tag):
        tensor.copy_(self._sent.pop(0))
        return self

    def wait(self, *timeout):
        return None


@one_gpu
def test_staged_messages_wait_for_the_computation_and_it_for_them():
    """The sender's kernel is late; memory is released as soon as the link allows; the host does not wait."""
    device = torch.device("cuda", 0)
    streams = streams_of(device)
    link, found = StagedLink(0, _Mail(), streams), []
    for number in range(50):
        torch.cuda._sleep(2_000_000)  # about 1 ms
        sent = [torch.full((1 << 20,), float(number), device=device)]
        complete = link.send(sent)
        complete()
        del sent
        arrival = link.receive([TensorSpec((1 << 20,), torch.float32, torch.float32)])
        (tensor,) = arrival.take()
        found.append(tensor.mean())
        del arrival, tensor
    assert [float(value) for value in found] == [float(number) for number in range(50)]


@one_gpu
def test_times_of_actions_are_the_devices():
    """The host returns at once; the timestamps are as far apart as the kernel takes."""
    streams = streams_of(torch.device("cuda", 0))
    streams.seconds([streams.timestamp()])
    began = streams.timestamp()
    torch.cuda._sleep(200_000_000)
    first, last = streams.seconds([began, streams.timestamp()])
    assert last - first > 0.02
