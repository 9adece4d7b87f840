"""What can only fail at the end, or in the middle of an epoch, is refused before the first one, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.pipeline.torch_devices import copy_modules
from jellybean.training import TrainingError, check_inputs, read_inputs
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.data.rows import MemoryRows
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.microbatch_trials import MicrobatchTrials
from jellybean.training.models.rebuilding import constant_digests, needs_memory
from jellybean_solver.pipeline import ScheduleCosts
from tests.support.trained_models import document_of

NETS = "tests.integration.training.gradients.nets"


def _document(model: str, **settings: object):
    data, loss = ("ids", "mse") if model == "tables" else ("vectors", "mse")
    return document_of({"model": f"{NETS}:{model}", "data": f"{NETS}:{data}", "loss": loss, **settings})


@pytest.mark.parametrize(
    ("model", "needed"),
    [("anchored", True), ("spectral", True), ("spectral_parametrized", True), ("pruned", True), ("unused", False)],
)
def test_a_model_whose_buffers_are_made_of_weights_is_built_with_memory(tmp_path, model, needed):
    document = _document(model)
    constants = constant_digests(read_inputs(document, tmp_path).module)
    assert needs_memory(constants, document, tmp_path) is needed


@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        (
            "tables",
            {"name": "adamw", "lr": 0.1},
            "bag.weight, table.weight, late.weight has sparse gradients, which AdamW",
        ),
        ("tables", {"name": "sgd", "lr": 0.1, "weight_decay": 0.1}, "has sparse gradients, which SGD does not take"),
        ("tables", {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}, ""),
        ("tables", {"name": "adagrad", "lr": 0.1}, ""),
        ("unused", {"name": "adamw", "lr": 0.1}, ""),
    ],
)
def test_an_optimizer_that_takes_no_sparse_gradients_is_refused(tmp_path, model, optimizer, said):
    document = _document(model, optimizer=optimizer)
    if said:
        with pytest.raises(TrainingError, match=said):
            check_inputs(read_inputs(document, tmp_path), document)
    else:
        check_inputs(read_inputs(document, tmp_path), document)


NOISY = """\
import itertools, torch
calls = itertools.count()
def net():
    layer = torch.nn.Linear(3, 1)
    layer.register_buffer("noise", torch.full((3,), float(next(calls))))
    return layer
def frozen():
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    layers[0].weight.requires_grad_(False).fill_(float(next(calls)))
    return layers
def data():
    return {"train": (torch.ones(8, 3), torch.ones(8, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""


@pytest.mark.parametrize(("model", "named"), [("net", "noise"), ("frozen", "the frozen weight 0.weight")])
def test_a_function_that_gives_another_model_each_time_is_refused(tmp_path, model, named):
    (tmp_path / "noisy.py").write_text(NOISY)
    document = document_of({"model": f"noisy.py:{model}", "data": "noisy.py:data", "loss": "mse"})
    constants = constant_digests(read_inputs(document, tmp_path).module)
    with pytest.raises(TrainingError, match=f"another model each time: {named} differs"):
        needs_memory(constants, document, tmp_path)


NORMED = """\
import torch
def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
def halves():
    class Halves(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.view(2, -1, 3)).view(-1, 1)
    return Halves(3, 1)
def data():
    return {"train": (torch.randn(29, 3), torch.ones(29, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("net", {"batch": 8, "microbatches": 4}, "a micro-batch of 1 row, .* micro-batches of 2, 1, 1, 1"),
        ("net", {"batch": 8, "microbatches": 2, "replicas": 2}, "micro-batches of 2, 1, 1, 1"),
        ("net", {"batch": 4, "microbatches": 4}, "a micro-batch of 1 row"),
        ("halves", {"batch": 8, "microbatches": 2}, "a micro-batch of 3 rows, .* micro-batches of 3, 2"),
        ("net", {"batch": 8, "microbatches": 2}, ""),
        ("net", {"batch": 7, "microbatches": 3}, ""),  # the last row is left out
    ],
)
def test_sizes_of_micro_batches_that_the_model_does_not_take_are_named(tmp_path, model, settings, said):
    (tmp_path / "normed.py").write_text(NORMED)
    document = document_of({"model": f"normed.py:{model}", "data": "normed.py:data", "loss": "mse", **settings})
    inputs = read_inputs(document, tmp_path)
    trials = MicrobatchTrials(inputs, document, check_inputs(inputs, document))
    sampler = MicrobatchSampler(29, document.batch, document.microbatches, document.replicas)
    if not said:
        trials._check_sizes(document, sampler)
        return
    with pytest.raises(TrainingError, match=said):
        trials._check_sizes(document, sampler)


WRITTEN = """\
import torch
class Scale(torch.nn.Linear):
    def __init__(self, copied):
        super().__init__(3, 3)
        self.copied = copied
        self.register_buffer("scale", torch.ones(()))
    def forward(self, x):
        self.scale += 0.1
        return super().forward(x) * (self.scale.clone() if self.copied else self.scale)
def net():
    return torch.nn.Sequential(Scale(False), torch.nn.Linear(3, 3))
def copied():
    return torch.nn.Sequential(Scale(True), torch.nn.Linear(3, 3))
def strict(outputs, targets):
    valid = targets >= 0
    if not valid.any():
        raise ValueError("nothing counts")
    return torch.nn.functional.cross_entropy(outputs[valid], targets[valid])
def data():
    targets = torch.arange(12) % 3
    targets[:9] = -100
    return {"train": (torch.randn(12, 3), targets), "test": (torch.ones(2, 3), torch.zeros(2).long())}
"""


def _trials(tmp_path, model: str, **settings: object):
    (tmp_path / "written.py").write_text(WRITTEN)
    loss = {"function": "written.py:strict", "counts": "targets"}
    document = document_of(
        {"model": f"written.py:{model}", "data": "written.py:data", "loss": loss, "batch": 8, **settings}
    )
    inputs = read_inputs(document, tmp_path)
    return document, MicrobatchTrials(inputs, document, check_inputs(inputs, document))


@pytest.mark.parametrize(
    ("model", "settings", "refused"),
    [
        ("net", {"schedule": "1f1b"}, True),
        ("net", {"schedule": "zb-h1"}, True),
        ("net", {"schedule": "naive"}, False),
        ("net", {"schedule": "1f1b", "recompute": True}, False),
        ("copied", {"schedule": "1f1b"}, False),
    ],
)
def test_a_buffer_written_between_forward_and_backward_is_refused(tmp_path, model, settings, refused):
    document, trials = _trials(tmp_path, model, devices=2, microbatches=4, metrics=["accuracy"], **settings)
    choice = ScheduleChoice(document.schedule, None, None, (), "torch.fx", {}, ScheduleCosts(), 0.0, 0.0, 0.0)
    if not refused:
        trials.check(document, choice)
        return
    with pytest.raises(TrainingError, match=r"writes into the buffer 0\.scale in place"):
        trials.check(document, choice)


AGAIN = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Again(nn.Module):
    def __init__(self, layers, again):
        super().__init__()
        self.layers, self.again = layers, again
    def forward(self, x):
        return self.again(self.layers, x) if torch.is_grad_enabled() else self.layers(x)
class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x
def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
def not_reentrant():
    return nn.Sequential(Again(normed(), lambda f, x: checkpoint(f, x, use_reentrant=False)), nn.Linear(4, 1))
def reentrant():
    inner = Again(nn.Sequential(nn.Linear(4, 4), Mean()), lambda f, x: checkpoint(f, x, use_reentrant=True))
    return nn.Sequential(nn.Linear(3, 4), inner, nn.Linear(4, 1))
def hooked():
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    made[1].register_full_backward_hook(lambda part, given, coming: (part.running_mean.mul_(0.99), None)[1])
    return made
def unset():
    made = nn.Sequential(normed(), nn.Linear(4, 1))
    made.register_buffer("last", torch.tensor(float("nan")))
    made[0].register_buffer("seen", torch.full((2, 3), complex("nan")))
    return made
def plain():
    return nn.Sequential(normed(), nn.Linear(4, 1))
def data():
    return {"train": (torch.randn(12, 3), torch.ones(12, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""


@pytest.mark.parametrize(
    ("model", "schedule", "buffer"),
    [
        ("not_reentrant", "1f1b", r"0\.layers\.1\.running_mean"),
        ("reentrant", "gpipe", r"1\.layers\.1\.mean"),
        ("hooked", "zb-h1", r"1\.running_mean"),
        ("not_reentrant", "naive", ""),
        ("plain", "1f1b", ""),
        ("unset", "1f1b", ""),
    ],
)
def test_a_buffer_written_in_both_passes_is_refused_where_micro_batches_overlap(tmp_path, model, schedule, buffer):
    (tmp_path / "again.py").write_text(AGAIN)
    settings = {"devices": 2, "microbatches": 4, "batch": 12, "schedule": schedule, "loss": "mse"}
    document = document_of({"model": f"again.py:{model}", "data": "again.py:data", **settings})
    inputs = read_inputs(document, tmp_path)
    trials = MicrobatchTrials(inputs, document, check_inputs(inputs, document))
    choice = ScheduleChoice(schedule, None, None, (), "torch.fx", {}, ScheduleCosts(), 0.0, 0.0, 0.0)
    if not buffer:
        trials.check(document, choice)
        return
    with pytest.raises(TrainingError, match=f"writes into the buffer {buffer} in the backward pass.*recompute: true"):
        trials.check(document, choice)


def test_a_loss_is_not_called_on_rows_of_which_nothing_counts(tmp_path, monkeypatch):
    _, trials = _trials(tmp_path, "copied", microbatches=4)
    rows = trials.inputs.data.train.samples.take(slice(0, 3))
    assert not trials.checked.rules.apply(rows).weight(slice(None))
    monkeypatch.setattr(MemoryRows, "example", lambda *_: rows)
    assert trials._tried(3) == ""


@pytest.mark.parametrize(("workers", "refused"), [(1, False), (2, True)])
def test_workers_of_parameter_servers_are_copies(tmp_path, workers, refused):
    document, trials = _trials(tmp_path, "copied")  # as a worker's document says: one device, one replica
    trials = replace(trials, servers_workers=workers)
    choice = ScheduleChoice("1f1b", None, None, (), "torch.fx", {}, ScheduleCosts(), 0.0, 0.0, 0.0)
    if not refused:
        trials.check(document, choice)
        return
    with pytest.raises(TrainingError, match=r"changes the buffer 0\.scale in each forward and computes with it"):
        trials.check(document, choice)


OVER_BATCH = """\
import torch
def net():
    return torch.nn.Linear(3, 1)
def root(outputs, targets):
    return ((outputs - targets) ** 2).mean().sqrt()
def data():
    return {"train": (torch.randn(16, 3), torch.ones(16, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""


def test_a_loss_over_the_batch_is_refused_with_workers_of_parameter_servers(tmp_path):
    (tmp_path / "roots.py").write_text(OVER_BATCH)
    document = document_of({"model": "roots.py:net", "data": "roots.py:data", "loss": "roots.py:root"})
    check_inputs(read_inputs(document, tmp_path), document)
    with pytest.raises(TrainingError, match="is over the batch, no mean over its rows"):
        check_inputs(read_inputs(document, tmp_path), document, servers_workers=2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_copy_of_a_compiled_module_can_be_trained():
    module = nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.Linear(3, 1))
    copied = copy_modules({0: module})[0]
    optimizer = torch.optim.SGD(copied.parameters(), 0.1)
    copied(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    pairs = list(zip(copied.parameters(), module.parameters(), strict=True))
    assert all(one.grad is not None and not torch.equal(one, other) for one, other in pairs)


KEEPS = """\
import torch
from torch import nn
LAST = []
class Part(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer, self.frozen = kind, nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.generator = torch.Generator().manual_seed(1)
        if kind == "stored":
            self.steps = nn.Parameter(torch.tensor([100, -100, 3], dtype=torch.int8), requires_grad=False)
    def forward(self, x):
        if self.kind == "stored":
            x = x + self.steps
        if self.kind == "average":
            with torch.no_grad():
                self.frozen.weight.lerp_(self.layer.weight, 0.1)
            return self.layer(x) + self.frozen(x)
        if self.kind == "drawn":
            return self.layer(x) + torch.randn(3, generator=self.generator)
        if self.kind == "clamped":
            self.layer.weight.data.clamp_(-0.1, 0.1)
        if self.kind == "moved":
            self.layer.weight.data.mul_(0.9)
        return self.layer(x)
def made(kind):
    LAST[:] = [nn.Sequential(Part(kind), nn.Tanh(), nn.Linear(3, 1))]
    return LAST[0]
average, drawn, clamped, moved, stored, plain = (lambda kind=kind: made(kind) for kind in
    ("average", "drawn", "clamped", "moved", "stored", "plain"))
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3, max_norm=0.1), nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight
    def forward(self, x):
        return self.head(torch.tanh(self.words(x.argmax(1))))[:, :1]
def tied():
    return Table()
def norm(outputs, targets):
    return (outputs - targets).square().mean() * (1 + LAST[0][0].layer.weight.detach().norm())
def data():
    torch.manual_seed(1)
    return {"train": (torch.randn(16, 3), torch.ones(16, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""
TWO_COPIES, TWO_STAGES = {"replicas": 2}, {"devices": 2, "schedule": "1f1b", "microbatches": 4}


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("average", {}, "writes into the weight 0.frozen.weight, which takes no gradient.*make it a buffer"),
        ("clamped", TWO_COPIES, "writes into the weight 0.layer.weight, so copies that run different micro-batches"),
        ("clamped", {}, ""),
        ("clamped", TWO_STAGES, ""),
        ("moved", TWO_STAGES, "and a gradient needs the value from before"),
        ("moved", {}, ""),
        ("tied", TWO_STAGES, "writes into the weight words.weight, which several layers share"),
        ("tied", {}, ""),
        ("drawn", TWO_COPIES, "keeps self.generator of Part 0 in Python.*so copies that run different"),
        ("drawn", {"recompute": True}, "keeps self.generator of Part 0 in Python.*`recompute` runs forward twice"),
        ("plain", {"loss": "keeps.py:norm", **TWO_STAGES}, "loss: keeps.py:norm reads weights of the model"),
        ("plain", {"loss": "keeps.py:norm"}, ""),
        ("stored", {"loss": "keeps.py:norm", **TWO_STAGES}, "loss: keeps.py:norm reads weights of the model"),
        ("stored", TWO_STAGES, ""),
        ("plain", TWO_STAGES, ""),
    ],
)
def test_what_copies_and_stages_would_have_otherwise_is_refused(tmp_path, model, settings, said):
    (tmp_path / "keeps.py").write_text(KEEPS)
    document = document_of({"model": f"keeps.py:{model}", "data": "keeps.py:data", "loss": "mse", **settings})
    inputs = read_inputs(document, tmp_path)
    trials = MicrobatchTrials(inputs, document, check_inputs(inputs, document))
    name = settings.get("schedule", "1f1b")
    choice = ScheduleChoice(name, None, None, (), "torch.fx", {}, ScheduleCosts(), 0.0, 0.0, 0.0)
    if not said:
        trials.check(document, choice)
        return
    with pytest.raises(TrainingError, match=said):
        trials.check(document, choice)


def test_what_is_in_no_checkpoint_is_said(tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS)
    for model, said in (("drawn", "is in no checkpoint"), ("plain", "")):
        document = document_of({"model": f"keeps.py:{model}", "data": "keeps.py:data", "loss": "mse"})
        inputs = read_inputs(document, tmp_path)
        note = MicrobatchTrials(inputs, document, check_inputs(inputs, document)).note
        assert said in note
        assert bool(note) is bool(said)


AUXILIARY = """\
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        return (super().forward(x), super().forward(2 * x) if self.training else None)
def net():
    return Net(3, 1)
def both(outputs, targets):
    return sum((one - targets).square().mean() for one in outputs)
def first(outputs, targets):
    return sum((one - targets).square().mean() for one in outputs if one is not None)
def number(outputs, targets):
    return (outputs[0] - targets).square().mean() if outputs[1] is not None else 0.0
def data():
    return {"train": (torch.randn(16, 3), torch.ones(16, 1)), "test": (torch.ones(2, 3), torch.ones(2, 1))}
"""


@pytest.mark.parametrize(("loss", "refused"), [("both", True), ("number", True), ("first", False)])
def test_a_loss_that_fails_on_what_evaluation_gives_is_refused(tmp_path, loss, refused):
    (tmp_path / "auxiliary.py").write_text(AUXILIARY)
    document = document_of({"model": "auxiliary.py:net", "data": "auxiliary.py:data", "loss": f"auxiliary.py:{loss}"})
    if not refused:
        check_inputs(read_inputs(document, tmp_path), document)
        return
    with pytest.raises(TrainingError, match="in evaluation mode, in which the test rows are measured, the loss"):
        check_inputs(read_inputs(document, tmp_path), document)
