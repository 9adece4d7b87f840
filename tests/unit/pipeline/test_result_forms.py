"""What a module returns keeps its structure in a graph, whatever holds its tensors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.pipeline import CallArguments, StageChain, stage_graph, trace

nn = torch.nn


class Scores(NamedTuple):
    """Scores, and auxiliary ones that only training has."""

    logits: torch.Tensor
    auxiliary: torch.Tensor | None


@dataclass
class Parts:
    """As a library returns them, known to torch's pytree."""

    low: torch.Tensor
    high: torch.Tensor


torch.utils._pytree.register_dataclass(Parts)
FORMS = {
    "named tuple": Scores,
    "with none": lambda one, other: (Scores(one, None), other),
    "data class": Parts,
    "nested": lambda one, other: OrderedDict(out=[Scores(one, other)], aux={"parts": Parts(other, one)}),
}


class Returning(nn.Module):
    """A layer whose results nest. Its hook makes that a graph calls it as it is."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(4, 4), form
        self.register_forward_hook(lambda *_: None)

    def forward(self, x):
        return FORMS[self.form](self.layer(x), x.sum(1))


class Around(nn.Module):
    """A model with such a layer within."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.before, self.within = nn.Linear(4, 4), Returning(form)

    def forward(self, x):
        return self.within(torch.tanh(self.before(x)))


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_model(form):
    module, inputs = Returning(form), torch.randn(3, 4)
    graph = stage_graph(StageChain([module]), CallArguments.of([inputs]))
    _same(graph.result.nest(graph.graph(inputs)), module(inputs))


@pytest.mark.parametrize("form", FORMS)
def test_a_submodule_that_is_called(form):
    module, inputs = Around(form), torch.randn(3, 4)
    graph = trace(module, CallArguments.of([inputs]))
    assert graph.called.names == {"module.within"}
    _same(graph.result.nest(graph.graph(inputs)), module(inputs))


def _same(result, expected):
    assert type(result) is type(expected)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (result, expected)), strict=True):
        assert one is other is None or torch.equal(one, other)
