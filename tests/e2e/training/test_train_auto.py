"""`parallel: auto` with the real command: fewer processes where they are faster, and the training stays the same."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from safetensors.torch import load_file

from jellybean.training.processes.threads import CORES
from tests.support.training_runs import run_training, write_project

pytestmark = pytest.mark.slow

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: mse
epochs: 2
batch: 24
microbatches: 2
optimizer: {name: adam, lr: 0.01}
"""
AUTO = "parallel: auto\n"
NETS = """\
import os
import time

import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 3)).double()

class Sleep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(9, 9).double()

    def forward(self, rows):
        time.sleep(4e-3 * len(rows))
        return self.linear(rows)

def sleeping():
    return [Sleep() for _ in range(4)]

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1)).double()
    return {"train": (rows, rows[:, :3]), "test": (rows, rows[:, :3])}

def wide():
    rows = data()["train"][0]
    return {"train": (rows, rows), "test": (rows[:1], rows[:1])}

def loss(outputs, targets):  # the second process is slow: two are slower than one, whatever messages take here
    time.sleep(0.005 * (os.environ.get("RANK") == "1"))
    return torch.nn.functional.mse_loss(outputs, targets)
"""
OWN_LOSS = DOCUMENT.replace("loss: mse", "loss: nets.py:loss")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")


@pytest.mark.parametrize(
    "launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.nightly)], ids=["launcher", "torchrun"]
)
def test_one_process_is_faster_and_trains_the_same(tmp_path, launcher):
    """Weights equal bit for bit those of a run that tries nothing, dropout and Adam's states included."""
    alone, auto = (
        write_project(tmp_path / "alone", OWN_LOSS, NETS),
        write_project(tmp_path / "auto", OWN_LOSS + AUTO, NETS),
    )
    run_training(alone)
    options = () if launcher else ("--set", "processes=2")
    done = run_training(auto, *options, launcher=launcher)
    assert "one process is fastest: 1f1b, 1 device x 1 replica, 2 micro-batches" in done.stderr
    assert "1 process of 2 ends now" in done.stderr
    expected, found = (load_file(folder / "training" / "model.safetensors") for folder in (alone, auto))
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@pytest.mark.nightly
def test_the_process_that_is_left_takes_the_cores(tmp_path):
    """Threads in the forward passes of the run that one process of two trains alone."""
    count = "    Path(__file__).with_name('threads').write_text(str(torch.get_num_threads()))\n"
    nets = NETS.replace("import torch\n", "from pathlib import Path\n\nimport torch\n", 1)
    nets = nets.replace("    return torch.nn.functional.mse_loss", f"{count}    return torch.nn.functional.mse_loss", 1)
    folder = write_project(tmp_path / "project", OWN_LOSS + AUTO, nets)
    done = run_training(folder, "--set", "processes=2", environment={"OMP_NUM_THREADS": "1", CORES: "3"})
    assert "one process is fastest" in done.stderr
    assert (folder / "threads").read_text(encoding="utf-8") == "3"


@pytest.mark.nightly
def test_two_processes_where_they_are_faster(tmp_path):
    """Stages that sleep take as long on two cores as on twenty: two devices need half of the time."""
    document = DOCUMENT.replace("model: nets.py:net", "stages: nets.py:sleeping").replace(":data", ":wide")
    document = document.replace("epochs: 2", "epochs: 1") + "replicas: 1\n" + AUTO
    folder = write_project(tmp_path / "project", document, NETS)
    done = run_training(folder, "--json", "--set", "processes=2")
    told = json.loads(done.stdout)
    assert (told["devices"], told["replicas"], told["microbatches"]) == (2, 1, 2)
    assert "2 processes are fastest" in told["choice"]
    assert set(told["rejected"]) >= {"pipedream", "naive"}
    assert told["tensor"] == 1
    assert told["rejected"]["tensor"].startswith("no layer can be split over 2 processes")
