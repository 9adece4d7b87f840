"""`jellybean train` with metrics, early stopping and averages of the weights, on one process."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from safetensors.torch import load_file, save_file

from jellybean.cli import run

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
epochs: 8
batch: 16
optimizer: {name: sgd, lr: 0.000000000001}
metrics: [accuracy, perplexity, nets.py:worst]
early_stop: {metric: worst, mode: min, patience: 2, min_delta: 0.01}
ema: 0.9
"""
NETS = """\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}

def worst(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none").max()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    (tmp_path / "training.yaml").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_run_stops_early_and_stays_stopped(project, capsys):
    assert run(["train", str(project), "--json"]) == 0
    out, said = capsys.readouterr()
    epochs = json.loads(out)["epochs"]
    assert len(epochs) == 3
    assert "stopped after epoch 3: worst has not improved for 2 epochs" in " ".join(said.split())
    assert list(epochs[0]["metrics"]) == ["accuracy", "perplexity", "worst"]
    assert epochs[0]["metrics"]["perplexity"] == pytest.approx(float(torch.tensor(epochs[0]["test_loss"]).exp()))
    assert f"perplexity {epochs[0]['metrics']['perplexity']:.4g}, worst " in said
    logged = [
        json.loads(line)
        for line in (project / "training" / "logs" / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [one["metrics"] for one in logged] == [one["metrics"] for one in epochs]
    assert run(["train", str(project), "--json"]) == 0
    out, said = capsys.readouterr()
    assert json.loads(out)["epochs"] == []
    assert "stopped after epoch 3" in said


@pytest.mark.slow
def test_the_logs_of_a_run_that_fails_are_closed(project, capsys):
    """It fails as soon as an epoch is logged."""
    failing = (
        "    if (pathlib.Path(__file__).parent / 'training/logs/epochs.jsonl').exists(): raise ValueError('odd')\n"
    )
    name = "def worst(outputs, targets):\n"
    (project / "nets.py").write_text("import pathlib\n" + NETS.replace(name, name + failing), encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(["train", str(project)]) == 1
        gc.collect()
    assert "odd" in capsys.readouterr().err
    assert list((project / "training" / "logs").glob("events.out.tfevents.*"))
    assert not [str(one.message) for one in caught if "tfevents" in str(one.message)]


@pytest.mark.slow
def test_averages_resume_exactly_and_are_what_is_handed_back(project, capsys):
    values = ("optimizer.lr=0.1", "checkpoint.updates=2", "checkpoint.keep=20")
    options = ["--json", *(part for value in values for part in ("--set", value))]
    assert run(["train", str(project), *options, "--set", "epochs=2"]) == 0
    whole = json.loads(capsys.readouterr().out)["epochs"]
    folder = project / "training" / "checkpoints"
    averages = {
        name.removeprefix("average/"): value
        for name, value in load_file(folder / "epoch-2" / "rank-0.safetensors").items()
        if name.startswith("average/")
    }
    handed_back = load_file(project / "training" / "model.safetensors")
    assert handed_back.keys() == averages.keys()
    assert all(torch.equal(handed_back[name], averages[name]) for name in averages)
    weights = load_file(folder / "epoch-2" / "rank-0.safetensors")
    assert not torch.equal(averages["0.weight"], weights["weight/0.weight"])
    for path in (folder / "epoch-2", folder / "epoch-1-update-4"):
        shutil.rmtree(path)
    assert run(["train", str(project), *options, "--set", "epochs=2"]) == 0
    (resumed,) = json.loads(capsys.readouterr().out)["epochs"]
    assert (resumed["losses"], resumed["metrics"]) == (whole[1]["losses"], whole[1]["metrics"])
    again = load_file(project / "training" / "model.safetensors")
    assert all(torch.equal(handed_back[name], again[name]) for name in again)


def _train(project: Path, capsys: pytest.CaptureFixture[str], *values: str) -> list[dict[str, Any]]:
    """The epochs of a run with other settings: a rate that learns, no early stop."""
    text = DOCUMENT.replace("early_stop", "description: no # ").replace("0.000000000001", "0.1")
    (project / "training.yaml").write_text(text, encoding="utf-8")
    options = [part for value in values for part in ("--set", value)]
    assert run(["train", str(project), "--json", *options]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["epochs"]
    return found


@pytest.mark.slow
def test_a_rate_that_follows_the_test_loss_resumes_exactly(project, capsys):
    """The rate falls after each epoch, as no epoch is better by 100 %."""
    plateau = ("lr_schedule={name: ReduceLROnPlateau, patience: 0, threshold: 1.0, factor: 0.5}",)
    whole = _train(project, capsys, *plateau, "epochs=4")
    shutil.rmtree(project / "training")
    begun = _train(project, capsys, *plateau, "epochs=2")
    ended = _train(project, capsys, *plateau, "epochs=4")
    assert [one["losses"] for one in begun + ended] == [one["losses"] for one in whole]
    shutil.rmtree(project / "training")
    assert _train(project, capsys, "epochs=4")[3]["losses"] != whole[3]["losses"]


def test_a_checkpoint_of_version_1_resumes(project, capsys):
    """It has no history and no averages: these begin with its weights."""
    whole = _train(project, capsys, "epochs=3")
    for path in sorted((project / "training" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    (folder,) = (project / "training" / "checkpoints").iterdir()
    tensors = load_file(folder / "rank-0.safetensors")
    save_file({n: v for n, v in tensors.items() if not n.startswith("average/")}, folder / "rank-0.safetensors")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((folder / "rank-0.safetensors").read_bytes()).hexdigest()
    old = {key: manifest[key] for key in ("epochs", "schedule", "devices", "optimizer")}
    old |= {"version": 1, "files": {"rank-0.safetensors": digest}}
    (folder / "manifest.json").write_text(json.dumps(old), encoding="utf-8")
    resumed = _train(project, capsys, "epochs=3")
    assert [one["losses"] for one in resumed] == [one["losses"] for one in whole[old["epochs"] :]]


@pytest.mark.slow
@pytest.mark.parametrize("factor", ["1.0", "1.5"])
def test_labels_that_are_not_the_targets_of_the_models_loss(project, capsys, factor):
    """A model in bfloat16 that computes its loss in float32, as those of transformers do."""
    (project / "nets.py").write_text(
        f"""\
import torch

class Net(torch.nn.Linear):
    def forward(self, rows, labels):
        scores = super().forward(rows)
        return {{"loss": {factor} * torch.nn.functional.cross_entropy(scores.float(), labels), "logits": scores}}

def net():
    return Net(9, 3).bfloat16()

def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    part = {{"rows": rows.bfloat16(), "labels": rows[:, :3].argmax(1)}}
    return {{"train": part, "test": part}}
""",
        encoding="utf-8",
    )
    settings = ("loss=model", "epochs=1", "metrics=[accuracy]", "early_stop=null", "ema=null")
    assert run(["train", str(project), "--json", *(part for text in settings for part in ("--set", text))]) == 0
    out, said = capsys.readouterr()
    unmatched = factor != "1.0"
    assert (json.loads(out)["epochs"][0]["accuracy"] is None) == unmatched
    assert ("the model's loss is not the mean cross-entropy over its argument `labels`" in said) == unmatched
