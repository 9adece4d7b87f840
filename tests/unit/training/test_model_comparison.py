"""The first update of a run is compared with the plain module: what the stages compute otherwise is named."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn

from jellybean.training.stages.stage import StageSettings
from tests.support.comparison import compare


class Net(nn.Module):
    """Layers with a skip connection; `change` computes what a case adds between them."""

    def __init__(self, change=lambda net, x: x):
        super().__init__()
        self.first, self.inner = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.drop, self.norm, self.last = nn.Dropout(0.2), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.calls, self.change = 0, change

    def forward(self, x):
        x = self.norm(torch.tanh(self.first(x)))
        x = self.change(self, x)
        for layer in self.inner:
            x = x + self.drop(torch.tanh(layer(x)))
        return self.last(x)


def _rows(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 8, generator=generator, dtype=dtype), torch.randn(16, 1, generator=generator, dtype=dtype)


def _compared(change=lambda net, x: x, dtype=torch.float64, prepare=lambda net: None, **settings):
    torch.manual_seed(0)
    net = Net(change).to(dtype)
    prepare(net)
    inputs, targets = _rows(dtype)
    return compare(net, [inputs], targets, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "zb-h1"},
        {"settings": StageSettings(recompute=True, keeps_versions=False)},
        {"settings": StageSettings()},
        {"settings": StageSettings(torch.bfloat16, keeps_versions=False), "dtype": torch.float32},
    ],
    ids=["1f1b", "split backward", "recompute", "weight versions", "bfloat16"],
)
def test_dropout_and_statistics_are_the_same(settings):
    assert _compared(**settings) is None


def _counted(net, x):
    net.calls += 1
    return x / net.calls


def test_a_python_counter_is_named_by_the_loss():
    difference = _compared(_counted)
    assert difference is not None
    assert str(difference).startswith("in training mode, with a micro-batch of 8 rows, the loss differs by 0.")


def test_the_module_is_as_it_was():
    inputs, targets = _rows()
    net = Net(_counted).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    generators = torch.get_rng_state()
    compare(net, [inputs], targets)
    assert net.calls == 0
    assert net.training
    assert torch.equal(torch.get_rng_state(), generators)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(inputs, _rows()[0])


def _halve_gradient(net):
    net.inner[1].weight.register_hook(lambda gradient: gradient * 0.5)


@pytest.mark.parametrize(
    "settings", [{}, {"settings": StageSettings()}, {"schedule": "zb-h1"}], ids=["leaf", "version", "split backward"]
)
def test_gradient_hooks_of_weights_run(settings):
    torch.manual_seed(0)
    assert _compared(prepare=_halve_gradient, **settings) is None


def test_forward_may_write_into_its_inputs():
    class Normalised(Net):
        def forward(self, x):
            return super().forward(x.sub_(3.0).div_(2.0))

    torch.manual_seed(0)
    inputs, targets = _rows()
    before = inputs.clone()
    for recompute in (False, True):
        settings = StageSettings(recompute=recompute, keeps_versions=False)
        assert compare(Normalised().double(), [inputs], targets, settings=settings) is None
    assert torch.equal(inputs, before)
