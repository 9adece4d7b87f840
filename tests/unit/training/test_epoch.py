"""What may be saved after an epoch, and what must not change in the middle of one; on one process."""

from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

import torch.distributed as dist
from safetensors.torch import load_file

from jellybean.documents import TrainingDocument
from jellybean.training import TrainingError, trained_model
from jellybean.training.checkpoints.finite import not_finite
from jellybean.training.train import train
from tests.support.training_inputs import set_up_cpu_run

NETS = """\
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 1))

def data():
    rows = 10 * torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :1]), "test": (rows, rows[:, :1])}

def short_net():
    return net().bfloat16()

def short_data():
    return {part: tuple(own.bfloat16() for own in both) for part, both in data().items()}

def steep(outputs, targets):
    return 1e22 * (outputs - targets).mean()

class Overflowing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.register_buffer("total", torch.tensor(1e38))

    def forward(self, rows):
        if self.training:
            self.total.mul_(100.0)
        return self.layer(rows)

def overflowing():
    return Overflowing()

class Undefined:
    def add(self, outputs, targets): ...
    def totals(self):
        return [0.0]
    def value(self, totals):
        return None
"""


@pytest.fixture(autouse=True)
def _group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _train(folder, log=None, **more):
    """Results by epoch, and the trained model."""
    (folder / "nets.py").write_text(NETS, encoding="utf-8")
    settings = {
        "kind": "Training",
        "model": "nets.py:net",
        "data": "nets.py:data",
        "loss": "mse",
        "epochs": 1,
        "batch": 4,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "metrics": (),
    }
    document = TrainingDocument(**{**settings, **more})
    run = set_up_cpu_run(document, 0, folder)
    told = []
    try:
        train(run, document, folder, told.append, lambda text: None, log=log)
        return told, trained_model(run, document, folder)
    finally:
        run.transport.close()


def _checkpoints(folder):
    return sorted(path.name for path in (folder / "training" / "checkpoints").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "told"),
    [
        (1e38, "the weight 0.weight is not finite after update 1 of epoch 2"),
        (1e30, "the test loss is inf after epoch 2"),
    ],
)
def test_what_the_last_update_broke_is_not_saved(tmp_path, lr, told):
    """The loss of the epoch's only update is finite: it was computed before the update."""
    _train(tmp_path, batch=10)
    with pytest.raises(TrainingError, match=told):
        _train(tmp_path, batch=10, epochs=2, optimizer={"name": "sgd", "lr": lr})
    assert _checkpoints(tmp_path) == ["epoch-1"]
    assert len(_train(tmp_path, batch=10, epochs=2)[0]) == 1  # resumes from it


@pytest.mark.slow
def test_an_epoch_is_in_the_log_before_its_checkpoint_is(tmp_path):
    """Else a run killed between the two resumes after an epoch that no log has."""
    logged = []
    _train(tmp_path, log=lambda epoch: logged.append((epoch.number, _checkpoints(tmp_path))), epochs=2)
    assert logged == [(1, []), (2, ["epoch-1"])]


@pytest.mark.slow
def test_nor_within_an_epoch(tmp_path):
    with pytest.raises(TrainingError, match=r"the weight 0\.weight is not finite after update 1 of epoch 1"):
        _train(tmp_path, optimizer={"name": "sgd", "lr": 1e38}, checkpoint={"updates": 1})
    assert _checkpoints(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        (
            {"optimizer": {"name": "adam", "lr": 0.1}, "loss": "nets.py:steep"},
            r"the optimizer's exp_avg_sq of 0\.weight",
        ),
        ({"model": "nets.py:overflowing"}, r"the buffer total"),
    ],
)
@pytest.mark.parametrize("updates", [None, 1])
def test_nor_what_is_no_weight(tmp_path, changes, broken, updates):
    """Weights and losses are finite: Adam divides by an infinite average, and the buffer is not used."""
    with pytest.raises(TrainingError, match=f"{broken} is not finite after update . of epoch 1"):
        _train(tmp_path, **changes, checkpoint={"updates": updates})
    assert _checkpoints(tmp_path) == []


def test_each_tensor_of_a_checkpoint_is_looked_at():
    state = {
        "buffer/count": torch.tensor([3]),
        "buffer/none": torch.zeros(0),
        "weight/a.b": torch.ones(3, dtype=torch.bfloat16),
        "buffer/large": torch.full((9,), 3e38),  # their sum is infinite
        "average/a.b": torch.ones(3, dtype=torch.float64),
        "state/a.b/exp_avg": torch.ones(3),
        "state/a.b/step": torch.tensor(1.0),
    }
    assert not_finite(state) == not_finite({}) == ""
    for value in (float("inf"), float("-inf"), float("nan")):
        for name, told in {
            "weight/a.b": "the weight a.b",
            "average/a.b": "the average of the weight a.b",
            "state/a.b/exp_avg": "the optimizer's exp_avg of a.b",
        }.items():
            wrong = state[name].clone()
            wrong[1] = value
            assert not_finite({**state, name: wrong}) == told


@pytest.mark.slow
def test_an_epoch_whose_metric_is_undefined_is_saved(tmp_path):
    more = {"metrics": ("nets.py:Undefined",), "early_stop": {"metric": "Undefined", "mode": "max", "patience": 1}}
    with pytest.raises(TrainingError, match="early_stop: Undefined is not defined for this data"):
        _train(tmp_path, epochs=9, checkpoint={"every": 5}, **more)
    assert _checkpoints(tmp_path) == ["epoch-1"]
    with pytest.raises(TrainingError, match="no value after epoch 2"):
        _train(tmp_path, epochs=9, checkpoint={"every": 5}, **more)


@pytest.mark.slow
def test_the_number_of_updates_stays_within_an_epoch(tmp_path):
    """10 rows in batches of 4: the 2 that are left are an update of 1 or 2 micro-batches, and none of 3."""
    folder = tmp_path / "training" / "checkpoints"
    _train(tmp_path, checkpoint={"updates": 1, "keep": 9})
    assert _checkpoints(tmp_path) == ["epoch-0-update-1", "epoch-0-update-2", "epoch-1"]
    shutil.rmtree(folder / "epoch-1")
    with pytest.raises(
        TrainingError, match=r"with updates 3, which is 2 now.*as many microbatches x replicas as before"
    ):
        _train(tmp_path, microbatches=3)
    path = folder / "epoch-0-update-2" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["division"]["updates"]  # as an early version wrote it
    path.write_text(json.dumps(manifest), encoding="utf-8")
    (epoch,), _ = _train(tmp_path, microbatches=3)
    assert (len(epoch.losses), epoch.idle) == (2, 0.0)


@pytest.mark.slow
def test_averages_of_short_weights_move(tmp_path):
    """0.001 of a bfloat16 weight's change rounds to nothing in bfloat16. They are handed back in the model's type."""
    short = {"model": "nets.py:short_net", "data": "nets.py:short_data", "ema": 0.999}
    _, module = _train(tmp_path, epochs=2, optimizer={"name": "sgd", "lr": 0.001}, **short)
    saved = load_file(tmp_path / "training" / "checkpoints" / "epoch-2" / "rank-0.safetensors")
    torch.manual_seed(0)
    start = torch.nn.Linear(3, 1).weight.bfloat16().float()
    moved = (saved["average/0.weight"] - start) / (saved["weight/0.weight"].float() - start)
    assert ((moved > 0.0005) & (moved < 0.02)).all()
    assert module[0].weight.dtype == torch.bfloat16
    assert torch.equal(module[0].weight, saved["average/0.weight"].bfloat16())
