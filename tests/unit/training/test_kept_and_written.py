"""What forward keeps in Python or writes into weights, and models that differ between processes: told, or refused."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.pipeline.torch_state import globals_kept, same_values, state_kept
from jellybean.training.models.kept_values import kept_between_calls
from jellybean.training.models.written_weights import WrittenWeight, written_weights
from jellybean.training.stages.weight_versions import WeightVersions


class _Part(nn.Module):
    """`kind`: what forward keeps for the next one, or writes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.frozen = kind, nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.last: Any = None
        self.count = 0
        self.generator = torch.Generator().manual_seed(1)
        self.numbers = np.random.default_rng(1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, f"_{self.kind}")(self.layer(x))

    def _nothing(self, y: torch.Tensor) -> torch.Tensor:
        return y

    def _map(self, y: torch.Tensor) -> torch.Tensor:
        """Kept to be looked at, as attention maps are."""
        self.last = y.detach()
        return y

    def _table(self, y: torch.Tensor) -> torch.Tensor:
        self.last = torch.linspace(0, 1, 3) if self.last is None else self.last
        return y + self.last

    def _previous(self, y: torch.Tensor) -> torch.Tensor:
        before, self.last = self.last, y.detach().mean(0)
        return y if before is None else y + before

    def _drawn(self, y: torch.Tensor) -> torch.Tensor:
        return y + torch.randn(3, generator=self.generator)

    def _scaled(self, y: torch.Tensor) -> torch.Tensor:
        return y * float(self.numbers.random())

    def _counted(self, y: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return y * self.count

    def _buffered(self, y: torch.Tensor) -> torch.Tensor:
        self.mean.add_(y.detach().mean(0))
        return y + self.mean

    def _average(self, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.frozen.weight.lerp_(self.layer.weight, 0.1)
        return y + self.frozen(y)

    def _clamped(self, y: torch.Tensor) -> torch.Tensor:
        self.layer.weight.data.clamp_(-0.1, 0.1)
        return y


def _made(kind: str) -> tuple[_Part, Any]:
    torch.manual_seed(0)
    module, inputs = _Part(kind), torch.randn(4, 3)
    return module, lambda: module(inputs)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("previous", "self.last of _Part in Python"),
        ("drawn", "self.generator of _Part in Python"),
        ("scaled", "self.numbers of _Part in Python"),
        ("counted", ""),  # plain values are found by their names
        ("buffered", ""),  # checkpoints have buffers
        ("map", ""),
        ("table", ""),
        ("nothing", ""),
    ],
)
def test_what_decides_a_later_forward_is_found(kind, kept):
    module, forward = _made(kind)
    before = module.generator.get_state()
    assert kept_between_calls(module, forward) == kept
    assert module.last is None
    assert torch.equal(module.generator.get_state(), before)


def test_weights_that_forward_writes_are_found():
    module, forward = _made("average")
    before = module.frozen.weight.clone()
    assert written_weights(module, forward) == [WrittenWeight("frozen.weight", frozen=True, moves=True)]
    assert torch.equal(module.frozen.weight, before)
    module, forward = _made("clamped")
    assert written_weights(module, forward) == [WrittenWeight("layer.weight", frozen=False, moves=False)]
    words = nn.Embedding(5, 3, max_norm=0.1)
    assert written_weights(words, lambda: words(torch.arange(3))) == [
        WrittenWeight("weight", frozen=False, moves=False)
    ]
    module, forward = _made("buffered")
    assert not written_weights(module, forward)


def test_a_weight_that_is_thawed_is_named():
    versions = WeightVersions(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)))
    assert not versions.thawed
    assert list(versions.trained) == ["1.weight", "1.bias"]
    versions.parameters["0.bias"].requires_grad_(True)
    assert versions.thawed == "0.bias"
    assert list(versions.trained) == ["1.weight", "1.bias"]


_MODELS: list[Any] = []


def test_global_names_are_bound_as_before(monkeypatch):
    first, other = _Part("nothing"), _Part("nothing")
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "MODEL", first, raising=False)
    monkeypatch.setattr(module, "_MODELS", [first])
    with globals_kept(), state_kept(first):
        module.MODEL = other
        module._MODELS[:] = [other]
    assert module.MODEL is first
    assert [first] == module._MODELS


def test_the_modes_of_autograd_are_as_before():
    layer = nn.Linear(1, 1)
    layer.bias.requires_grad_(False)
    with state_kept(layer):
        torch.set_grad_enabled(False)
        layer.bias.requires_grad_(True)
        layer.weight.requires_grad_(False)
    assert torch.is_grad_enabled()
    assert layer.weight.requires_grad
    assert not layer.bias.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_are_compared_by_their_parts():
    one = torch.eye(3).to_sparse()
    assert same_values(one, one.clone())
    assert not same_values(one, torch.eye(3).roll(1, 0).to_sparse())
    assert not same_values(one, torch.zeros(3, 3).to_sparse())
    assert same_values(one.to_sparse_csr(), torch.eye(3).to_sparse_csr())
    assert not same_values(one.to_sparse_csr(), (2 * torch.eye(3)).to_sparse_csr())
