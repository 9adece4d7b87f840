"""Micro-batches that train otherwise than their batch are told, with the module that makes them differ."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.nn import functional

from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.batch_dependence import TRIED_ROWS, dependence_note
from jellybean.training.losses import ROWS, SUM, TARGETS
from jellybean.training.samples import Samples


class Net(nn.Module):
    """A part between two layers."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(3, 4), part, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(torch.tanh(self.stem(x))))


class Deviation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.std(0, unbiased=False).mean()


class Shifted(nn.Module):
    """Each row takes a part of the one before it, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([torch.roll(x[:, :2], 1, 0), x[:, 2:]], 1) if self.training else x)


class Routed(nn.Module):
    """The expert takes the row that it likes most."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.expert = nn.Linear(4, 1), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.gate(x)[:, 0].topk(1).indices
        return x.index_add(0, rows, self.expert(x[rows]))


class Numbered(nn.Module):
    """Rows have positions of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(TRIED_ROWS, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.places[: len(x)]


def clamped() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return layer


def halved(weight: torch.Tensor) -> None:
    weight.grad.mul_(0.5)


def accumulated() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight.register_post_accumulate_grad_hook(halved)
    return layer


class Rounded(nn.Module):
    """Its result is rounded to 16 bits, and nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().to(x.dtype)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def vectors() -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(TRIED_ROWS, width, generator=generator) for width in (3, 2))
    return Samples(CallArguments.of([inputs]), CallArguments.of([targets]))


def noted(part: nn.Module, loss: Any = functional.mse_loss, what: str = ROWS) -> str:
    torch.manual_seed(0)
    return dependence_note(Net(part), loss, vectors(), what, {}, "nets.py:net")


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        (Deviation, r"rows of a batch change each other in part \(Deviation\)"),
        (Shifted, r"rows of a batch change each other in part \(Shifted\), before part.layer"),
        (Routed, r"rows of a batch change each other in part \(Routed\)"),
        (Numbered, r"rows of a batch change each other in part \(Numbered\)"),
        (clamped, r"the gradient of part.weight \(Linear\) is no mean over rows"),
        (accumulated, r"the hook on the accumulated gradient of part.weight"),
    ],
)
def test_what_makes_a_micro_batch_another_one_is_named(part, cause):
    torch.manual_seed(0)
    note = noted(part())
    assert note.startswith("nets.py:net: ")
    assert re.search(cause, note), note


@pytest.mark.parametrize(
    "part", [lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.5), nn.Tanh, Rounded, Noisy, lambda: nn.GroupNorm(2, 4)]
)
def test_nothing_is_said_where_batches_may_be_divided(part):
    assert not noted(part())


def test_a_sum_and_a_mean_over_targets_are_divided_as_they_count():
    assert not noted(nn.Tanh(), lambda outputs, targets: (outputs - targets).square().sum(), SUM)
    torch.manual_seed(0)
    words = torch.randint(0, 9, (TRIED_ROWS, 4))
    labels = words.masked_fill(torch.arange(4) >= torch.arange(TRIED_ROWS)[:, None] % 5, -100)
    samples = Samples(CallArguments.of([words]), CallArguments.of([labels]))
    counts = (labels != -100).sum(1).double()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    for by_frequency in (False, True):
        module = nn.Sequential(nn.Embedding(9, 9, scale_grad_by_freq=by_frequency), nn.Linear(9, 9))
        note = dependence_note(module, loss, samples, TARGETS, {TARGETS: counts}, "net")
        assert bool(note) is by_frequency
        assert "the gradient of 0.weight (Embedding) is no mean over rows" in note or not by_frequency


def test_the_module_is_as_before():
    torch.manual_seed(0)
    module = Net(nn.Sequential(Deviation(), nn.BatchNorm1d(4)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert dependence_note(module, functional.mse_loss, vectors(), ROWS, {}, "net")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())
    assert all(value.grad is None for value in module.parameters())
