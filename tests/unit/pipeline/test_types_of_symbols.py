"""A forward that asks for the type of a value is followed where it goes, or called as it is."""

from __future__ import annotations

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.pipeline import CallArguments, trace

nn = torch.nn


class State(nn.Module):
    """Takes the first part of a state, if it has parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        outputs, state = self.layer(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return outputs + hidden[-1].unsqueeze(1)


class Several(nn.Module):
    """Takes one tensor, or a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = x if isinstance(x, torch.Tensor) else torch.cat([x[0], x[1], x[2]], dim=-1)
        return self.layer(x)


class Sized(nn.Module):
    """Takes a number of columns, or a text with it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        columns = x.shape[-1]
        return self.layer(x) * (columns if isinstance(columns, int) else len(columns.split()))


class Around(nn.Module):
    """Layers that can be followed around one that asks for types."""

    def __init__(self, inner: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.inner, self.blocks = nn.Linear(4, 4), inner(), nn.ModuleList(inner() for _ in range(2))
        self.last = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Linear(64, 4))

    def forward(self, x):
        x = self.inner(torch.tanh(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.mark.parametrize("inner", [State, Several, Sized])
def test_a_module_that_asks_for_types_is_called_as_it_is(inner, capsys):
    torch.manual_seed(0)
    module, inputs = Around(inner), torch.randn(3, 3, 4)
    traced = trace(module, CallArguments.of([inputs]), tracers=("torch.fx",))
    assert traced.called.names == {"module.inner", "module.blocks.0", "module.blocks.1"}
    assert torch.equal(traced.graph(inputs)[0], module(inputs))
    assert capsys.readouterr() == ("", "")  # torch.fx prints what fails
