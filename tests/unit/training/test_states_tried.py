"""What a model keeps besides its weights is tried before the first epoch: buffers, states, what no file holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training import TrainingError
from jellybean.training.models.buffers import buffer_shapes_kept, carried_buffer
from jellybean.training.models.rebuilding import check_own_memory, check_saved, constant_digests

NETS = "tests.integration.training.gradients.nets"


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
        self.grows, self.layer, self.calls = grows, nn.Linear(2, 2), 0
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("scale", torch.ones(1))  # as of torch's observers of channels

    def forward(self, x):
        self.calls += 1
        if self.grows == "in place":
            self.seen.resize_(2).copy_(x.detach().mean(0))
        elif self.grows == "with a value":
            self.scale.resize_(2).fill_(2.0)
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
        ("with a value", r"changes the buffer scale from float32 \[1\] to float32 \[2\]"),
        ("replaced", r"changes the buffer seen from float32 \[0\] to float32 \[2\]"),
        ("type", r"changes the buffer seen from float32 \[0\] to int64 \[0\]"),
        ("made", "makes the buffer cache in forward"),
    ],
)
def test_buffers_that_do_not_stay_are_refused_by_name(grows, said):
    module = _Growing(grows)
    constant_digests(module)
    with pytest.raises(TrainingError, match=said), buffer_shapes_kept(module, "nets.py:net"):
        module(torch.ones(3, 2))
    assert [(name, list(value.shape)) for name, value in module.named_buffers()] == [("seen", [0]), ("scale", [1])]
    assert float(module.scale) == 1.0
    assert module.calls == 0


def test_a_buffer_that_forward_replaces_is_as_before():
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(2))
    with buffer_shapes_kept(module, "the model"):
        module.mean = module.mean + 1
    assert torch.equal(module.mean, torch.zeros(2))


class _Step(nn.Module):
    """Batch norm, after what `compute(module, inputs)` gives. `steps` counts forwards."""

    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute, self.norm, self.calls = compute, nn.BatchNorm1d(3), 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        self.calls += 1
        return self.norm(self.compute(self, x))


@pytest.mark.parametrize(
    ("compute", "buffer"),
    [
        (lambda _, x: x.mul_(2.0), ""),
        (lambda _, x: x * (1 + random.random()), ""),
        (lambda _, x: x + float(np.random.rand()) * x.roll(1, 0), ""),
        (lambda part, x: x.roll(part.calls, 1), ""),
        (lambda part, x: torch.where(part.steps > 1000, x.roll(1, 1), x), "steps"),
        (lambda part, x: x.roll(1, 1) if part.steps == 2 else x, "steps"),
    ],
    ids=["writes", "python", "numpy", "counts", "after a warm-up", "at once"],
)
def test_only_buffers_carry_and_a_trial_leaves_no_trace(compute, buffer):
    module, rows = _Step(compute), torch.randn(5, 3)
    inputs = CallArguments.of([rows])
    expected, states = rows.clone(), (random.getstate(), np.random.get_state()[1].copy())
    assert carried_buffer(module, lambda: inputs.call(module)) == buffer
    assert torch.equal(rows, expected)
    assert (module.calls, int(module.steps)) == (0, 0)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])


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
