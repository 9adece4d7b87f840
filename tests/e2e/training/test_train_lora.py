"""`jellybean train` with adapters: checkpoints hold them alone, and resume only beside the same frozen weights."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.skips import Absent, NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.models.zoo import declare_torchvision

declare_torchvision()
pytest.importorskip("peft", reason=NotInstalled.PEFT)

from safetensors.torch import load_file

from jellybean.cli import run
from jellybean.documents import load_training
from jellybean.training.checkpoints.checkpoint import finish_checkpoint, write_rank_file
from jellybean.training.checkpoints.position import Position
from jellybean.training.train import train
from tests.integration.training.ranks import run_ranks
from tests.support.training_inputs import set_up_cpu_run

pytestmark = pytest.mark.slow

NETS = """\
import torch
from tests.integration.training.models.zoo import declare_torchvision

declare_torchvision()

def net(seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(9, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)]
    return torch.nn.Sequential(*layers).double()

def other_net():
    return net(seed=1)

def single_net():
    return net().float()

def adapted_net():
    import peft

    model = net()
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=["0", "2"]))

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}

def single_data():
    return {part: (rows.float(), own) for part, (rows, own) in data().items()}
"""
DOCUMENT = """\
kind: Training
model: nets.py:net
lora: {targets: ["0", "2"]}
data: nets.py:data
epochs: 1
batch: 32
microbatches: 2
optimizer: {name: adam, lr: 0.01}
"""
TRAINED = {f"{layer}.lora_{part}.default.weight" for layer in (0, 2) for part in "AB"}
BASE = {f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")}


@pytest.fixture
def project(tmp_path):
    torch.set_num_threads(1)
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    return tmp_path


def _train(capsys: pytest.CaptureFixture[str], project: Path, *values: str) -> list[float]:
    options = [part for value in values for part in ("--set", value)]
    assert run(["train", str(project), "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return [loss for epoch in found["epochs"] for loss in epoch["losses"]]


def _checkpoint(project: Path, epochs: int) -> dict[str, torch.Tensor]:
    folder = project / "training" / "checkpoints" / f"epoch-{epochs}"
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def _weights(tensors: dict[str, torch.Tensor]) -> set[str]:
    return {name.removeprefix("weight/") for name in tensors if name.startswith("weight/")}


@dataclass(frozen=True)
class OnTwo:
    """An epoch more on two ranks; returns its losses."""

    folder: str

    def __call__(self, rank: int) -> list[float]:
        document = load_training(Path(self.folder), ["epochs=2", "devices=2", "schedule=1f1b"])
        own = set_up_cpu_run(document, rank, Path(self.folder))
        trained = train(own, document, Path(self.folder), lambda e: None, lambda t: None)
        return [loss for epoch in trained.epochs for loss in epoch.losses]


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_a_run_on_one_and_two_processes(project, tmp_path_factory, capsys):
    """Three epochs, the second one on two processes, are three epochs on one. The user's own PeftModel is the same."""
    whole = tmp_path_factory.mktemp("whole")
    (whole / "nets.py").write_text(NETS, encoding="utf-8")
    (whole / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    expected = _train(capsys, whole, "epochs=3", "model=nets.py:adapted_net", "lora=null")

    losses = _train(capsys, project, "epochs=1")
    assert _weights(_checkpoint(project, 1)) == TRAINED
    on_two = run_ranks(2, [OnTwo(str(project))])[0]
    assert on_two[0] == on_two[1]
    losses += on_two[0]
    assert _weights(_checkpoint(project, 2)) == TRAINED
    losses += _train(capsys, project, "epochs=3")

    assert losses == pytest.approx(expected, rel=1e-10)
    assert losses[-1] < losses[0]
    for folder in (project, whole):
        model = load_file(folder / "training" / "model.safetensors")
        assert model.keys() == BASE
        adapter = load_file(folder / "training" / "adapter" / "adapter_model.safetensors")
        a, b = (adapter[f"base_model.model.2.lora_{part}.weight"] for part in "AB")
        assert torch.allclose(model["2.weight"], _base(project)["2.weight"] + 16 / 8 * b @ a)
        assert torch.equal(model["4.weight"], _base(project)["4.weight"])


def test_rounded_frozen_weights_are_handed_back_exactly(project, capsys):
    """In a short type the computation uses rounded ones; the run resumes in another precision."""
    single = ("model=nets.py:single_net", "data=nets.py:single_data")
    _train(capsys, project, *single, "precision=bfloat16-weights")
    model = load_file(project / "training" / "model.safetensors")
    base = {name: value.float() for name, value in _base(project).items()}
    assert torch.equal(model["4.weight"], base["4.weight"])
    assert 0 < (model["2.weight"] - base["2.weight"]).abs().max() < 0.1
    _train(capsys, project, *single, "epochs=2")
    assert _weights(_checkpoint(project, 2)) == TRAINED


def test_other_frozen_weights_are_refused(project, capsys):
    _train(capsys, project)
    assert run(["train", str(project), "--set", "epochs=2", "--set", "model=nets.py:other_net"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "epoch-1 was trained beside other frozen weights: 0.base_layer.weight and 5 more differ" in said
    assert "--fresh" in said


def test_a_checkpoint_with_all_weights_is_resumed(project, capsys):
    """As earlier versions wrote it; weights that it restored are written again."""
    _train(capsys, project)
    folder = project / "training" / "checkpoints"
    tensors = _checkpoint(project, 1)
    for name, value in _base(project).items():
        layer, _, kind = name.partition(".")
        own = f"{layer}.{kind}" if layer == "4" else f"{layer}.base_layer.{kind}"
        tensors[f"weight/{own}"] = value + 0.5
    manifest = json.loads((folder / "epoch-1" / "manifest.json").read_text(encoding="utf-8"))
    facts = {key: manifest[key] for key in ("schedule", "devices", "optimizer", "history", "loss_scale")}
    hashed = write_rank_file(folder, Position(1, 0), 0, tensors)
    finish_checkpoint(folder, Position(1, 0), {0: hashed}, facts, keep=2)

    _train(capsys, project, "epochs=2")

    again = _checkpoint(project, 2)
    assert torch.equal(again["weight/4.weight"], tensors["weight/4.weight"])
    model = load_file(project / "training" / "model.safetensors")
    assert torch.equal(model["4.weight"], tensors["weight/4.weight"])


def _base(project: Path) -> dict[str, torch.Tensor]:
    from jellybean.pipeline import load_function

    return dict(load_function("nets.py", "net", project)().state_dict())
