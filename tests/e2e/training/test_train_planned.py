"""Plans train as they were planned: profile, plan, train on real processes; resumed on other stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
from safetensors.torch import load_file

from jellybean.cli import run
from tests.support.command_line import jellybean
from tests.support.training_runs import options_of, run_training

pytestmark = pytest.mark.slow

NETS = """\
import torch

def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(9, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)
    )

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.left, self.right = (torch.nn.Linear(9, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x).tanh()
        return self.head(self.left(x).tanh() * self.right(x).sigmoid())

def branches():
    return Branches()

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows[:40], rows[:40, :3].argmax(1))}
"""
DOCUMENT = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 2
batch: 24
microbatches: 4
optimizer: {name: adam, lr: 0.01}
device: cpu
ema: 0.5
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    return tmp_path


def _train(project: Path, *values: str, fresh: bool = False) -> dict[str, Any]:
    done = run_training(project, "--json", *options_of(values), *(["--fresh"] if fresh else []))
    return {**json.loads(done.stdout), "said": done.stderr}


def _train_alone(project: Path, *values: str) -> dict[str, Any]:
    """On one device, in this process, which has torch already."""
    options = options_of(("devices=1", *values))
    found: dict[str, Any] = json.loads(jellybean("train", str(project), "--json", *options).stdout)
    return found


def _losses(*runs: dict[str, Any]) -> list[float]:
    return [loss for one in runs for epoch in one["epochs"] for loss in epoch["losses"]]


def _two_one(project: Path) -> None:
    """Write the plan 2-1 for the model's layers, as `pipeline profile` names them."""
    assert run(["pipeline", "profile", str(project), "--seconds", "0.05", "--out", str(project / "layers.txt")]) == 0
    plan = project / "plan.json"
    assert run(["pipeline", "plan", str(project / "layers.txt"), "--workers", "1", "--out", str(plan)]) == 0
    (whole,) = json.loads(plan.read_text(encoding="utf-8"))["stages"]
    assert whole["devices"] == [0]
    assert len(whole["layers"]) >= 3
    stages = [{"layers": whole["layers"][:2], "devices": [0, 1]}, {"layers": whole["layers"][2:], "devices": [2]}]
    plan.write_text(json.dumps({"stages": stages}), encoding="utf-8")


def test_a_plan_trains_as_one_process(project):
    """2-1 on three processes; an epoch on them, then one on two by an objective; evaluated, saved and handed back."""
    whole = _train_alone(project)
    expected = load_file(project / "training" / "model.safetensors")
    _two_one(project)
    begun = _train(project, "stages=plan.json", "epochs=1", fresh=True)
    assert "1f1b: 2 stages (2-1) on 3 devices" in begun["said"]
    ended = _train(project, "objective=alpa", "devices=2")
    assert "resuming from" in ended["said"]
    assert _losses(begun, ended) == pytest.approx(_losses(whole), rel=1e-4)
    last, wanted = ended["epochs"][-1], whole["epochs"][-1]
    assert last["test_loss"] == pytest.approx(wanted["test_loss"], rel=1e-4)
    found = load_file(project / "training" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.allclose(value, expected[name], rtol=1e-3, atol=1e-5), name


@pytest.mark.nightly
def test_layers_of_a_planned_stage_may_be_split(project):
    """2-1, each replica on two processes that have parts of its layers: six processes."""
    whole = _train_alone(project, "epochs=1")
    _two_one(project)
    split = _train(project, "plan=plan.json", "tensor=2", "epochs=1", fresh=True)
    assert _losses(split) == pytest.approx(_losses(whole), rel=1e-4)
    assert split["epochs"][-1]["test_loss"] == pytest.approx(whole["epochs"][-1]["test_loss"], rel=1e-4)


def test_conv_data_says_that_the_model_has_no_convolutions(project):
    trained = _train(project, "tensor={ways: 2, conv: data}", "epochs=1")
    assert "`conv: data` is meant for convolutions, and the model has none" in trained["said"]


@pytest.mark.nightly
def test_a_plan_without_a_flush_learns(project):
    _two_one(project)
    trained = _train(project, "plan=plan.json", "schedule=pipedream", "epochs=3", "ema=null")
    assert (
        "pipedream: 2 stages (2-1) on 3 devices, 8 updates an epoch, 16 micro-batches without a break"
        in trained["said"]
    )
    losses = _losses(trained)
    assert len(losses) == 24
    assert losses[-1] < losses[0]


@pytest.mark.nightly
def test_branches_train_as_one_process(project):
    """The plan that `pipeline plan` writes is of one device here; its right branch is moved to another."""
    whole = _train_alone(project, "model=nets.py:branches")
    document = project / "training.yaml"
    document.write_text(
        document.read_text(encoding="utf-8").replace("nets.py:net", "nets.py:branches"), encoding="utf-8"
    )
    layers, plan = project / "layers.txt", project / "plan.json"
    assert run(["pipeline", "profile", str(project), "--seconds", "0.05", "--out", str(layers)]) == 0
    objective = ["--objective", "branches", "--workers", "1"]
    assert run(["pipeline", "plan", str(layers), *objective, "--out", str(plan)]) == 0
    record = json.loads(plan.read_text(encoding="utf-8"))
    (stage,) = record["stages"]
    moved = [name for name in stage["layers"] if name.startswith("right")]
    kept = [name for name in stage["layers"] if name not in moved]
    record["stages"] = [{"layers": kept, "devices": [0]}, {"layers": moved, "devices": [1]}]
    plan.write_text(json.dumps(record), encoding="utf-8")
    trained = _train(project, "plan=plan.json", fresh=True)
    assert "branches: 4 stages on 2 devices" in trained["said"]
    assert _losses(trained) == pytest.approx(_losses(whole), rel=1e-4)
    assert trained["epochs"][-1]["test_loss"] == pytest.approx(whole["epochs"][-1]["test_loss"], rel=1e-4)


def test_a_plan_of_another_model_is_refused(project, capsys):
    plan = {"stages": [{"layers": ["fc"], "devices": [0]}]}
    (project / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert run(["train", str(project), "--set", "plan=plan.json"]) == 2
    assert (
        "plan.json is the plan of another model: the model has no fc, and the plan has no 0" in capsys.readouterr().err
    )
