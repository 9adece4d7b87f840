"""What can only fail at the end, or in the middle of an epoch, is refused before the first one, by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from jellybean.training import TrainingError, check_inputs, read_inputs
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.microbatch_trials import MicrobatchTrials
from jellybean.training.models.buffers import buffer_shapes_kept, carried_buffer
from jellybean.training.models.rebuilding import check_own_memory, check_saved, constant_digests, needs_memory
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


class _Alias(nn.Module):
    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.weight.requires_grad_(trained)
        self.register_buffer("alias", self.layer.weight.data[0])


def test_a_buffer_that_is_a_trained_weight_is_refused():
    with pytest.raises(TrainingError, match="alias shares the memory of the weight layer"):
        check_own_memory(_Alias(trained=True))
    check_own_memory(_Alias(trained=False))
    normed = spectral_norm(nn.Linear(2, 2))
    normed(torch.ones(1, 2))  # which computes the attribute that was the weight
    check_own_memory(normed)


class _State(nn.Linear):
    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        pass


def test_what_no_file_of_weights_can_hold_is_refused():
    with pytest.raises(TrainingError, match=r"_extra_state of the model's state_dict\(\) is no tensor but dict"):
        check_saved(_State(2, 2))
    with pytest.raises(TrainingError, match="weight is complex128, which no file"):
        check_saved(nn.Linear(2, 2, dtype=torch.complex128))
    check_saved(nn.Linear(2, 2, dtype=torch.complex64))
    sparse = nn.Linear(2, 2)
    sparse.register_buffer("mask", torch.eye(2).to_sparse())
    with pytest.raises(TrainingError, match="mask is no dense tensor"):
        check_saved(sparse)


class _Growing(nn.Module):
    """`grows`: how a forward changes the buffers."""

    def __init__(self, grows: str) -> None:
        super().__init__()
        self.grows, self.layer = grows, nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        if self.grows == "in place":
            self.seen.resize_(2).copy_(x.detach().mean(0))
        elif self.grows == "replaced":
            self.seen = torch.cat([self.seen, x.detach().mean(0)])
        elif self.grows == "type":
            self.seen = self.seen.long()
        elif self.grows == "made" and not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(2), persistent=False)
        return self.layer(x)


@pytest.mark.parametrize(
    ("grows", "said"),
    [
        ("in place", r"changes the buffer seen from float32 \[0\] to float32 \[2\]: run the model once"),
        ("replaced", r"changes the buffer seen from float32 \[0\] to float32 \[2\]"),
        ("type", r"changes the buffer seen from float32 \[0\] to int64 \[0\]"),
        ("made", "makes the buffer cache in forward"),
    ],
)
def test_buffers_that_do_not_stay_are_refused_by_name(grows, said):
    module = _Growing(grows)
    with pytest.raises(TrainingError, match=said), buffer_shapes_kept(module, "nets.py:net"):
        module(torch.ones(3, 2))
    assert [(name, list(value.shape)) for name, value in module.named_buffers()] == [("seen", [0])]


def test_a_buffer_that_forward_replaces_is_as_before():
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(2))
    with buffer_shapes_kept(module, "the model"):
        module.mean = module.mean + 1
    assert torch.equal(module.mean, torch.zeros(2))


class _Counter(nn.Module):
    """Counts its forwards, and reads the count if `reads`."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))

    def forward(self, x):
        self.steps += 1
        self.seen[0] = True
        return x * self.steps if self.reads else x


@pytest.mark.parametrize(
    ("module", "buffer"),
    [
        (nn.BatchNorm1d(3), ""),
        (nn.BatchNorm1d(3, momentum=None), ""),
        (parametrizations.spectral_norm(nn.Linear(3, 3)), "parametrizations.weight.0._v"),
        (spectral_norm(nn.Linear(3, 3)), "weight_u"),
        (_Counter(reads=False), ""),
        (_Counter(reads=True), "steps"),
        (nn.Linear(3, 3), ""),
    ],
)
def test_buffers_that_carry_something_to_the_next_micro_batch(module, buffer):
    before = {name: value.clone() for name, value in module.named_buffers()}
    assert carried_buffer(module, lambda: module(torch.randn(4, 3))) == buffer
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())


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
