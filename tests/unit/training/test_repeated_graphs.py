"""Each rank makes the graph that the first found, though only the first has run the model before."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.errors import JellyBeanError
from jellybean.pipeline import CallArguments
from jellybean.training.graphs import find_graphs, repeat_graphs

nn = torch.nn


def _by_type(config: argparse.Namespace, labels: torch.Tensor) -> None:
    if config.kind is None:
        config.kind = "classes" if labels.dtype == torch.int64 else "numbers"


def _by_values(config: argparse.Namespace, labels: torch.Tensor) -> None:
    if not config.sizes:
        config.sizes.append(int(labels.max()))
    config.kind = "classes"


def _by_failure(config: argparse.Namespace, labels: torch.Tensor) -> None:
    if not hasattr(config, "ready"):
        config.ready = bool((labels >= 0).all())
        config.kind = "classes"


class Decided(nn.Module):
    """Its first call decides what later ones do, and writes it into an object of a library."""

    def __init__(self, decide: Callable[[argparse.Namespace, torch.Tensor], None]) -> None:
        super().__init__()
        self.config, self.decide = argparse.Namespace(kind=None, sizes=[]), decide
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.decide(self.config, labels)
        hidden = torch.tanh(self.one(x))
        return self.other(hidden) if self.config.kind == "classes" else hidden


@pytest.mark.parametrize("decide", [_by_type, _by_values, _by_failure])
def test_what_the_first_call_decides(decide):
    arguments = CallArguments.of([torch.randn(3, 4), torch.tensor([0, 2, 1])])
    first, other = Decided(decide), Decided(decide)
    arguments.call(first)
    graphs = find_graphs(first, arguments)
    again = repeat_graphs(other, arguments, graphs.recipes)
    assert graphs.training.tracer == "torch.fx"
    for one, repeated in ((graphs.training, again.training), (graphs.evaluation, again.evaluation)):
        assert [node.name for node in repeated.graph.graph.nodes] == [node.name for node in one.graph.graph.nodes]


def test_a_graph_that_cannot_be_made_again_names_the_line():
    arguments = CallArguments.of([torch.randn(3, 4), torch.tensor([0, 2, 1])])
    graphs = find_graphs(Decided(lambda config, labels: None), arguments)
    with pytest.raises(JellyBeanError, match=r"torch\.fx cannot follow Decided again: .*test_repeated_graphs\.py"):
        repeat_graphs(Decided(lambda config, labels: labels.sum() > 0 and None), arguments, graphs.recipes)
