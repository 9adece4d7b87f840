"""A model that evaluates by code that no graph records is cut where evaluation can be cut, too."""

from __future__ import annotations

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.pipeline import CallArguments
from jellybean.training.called_modules import CutGraphs
from jellybean.training.graphs import find_graphs

nn = torch.nn


class Block(nn.Module):
    """Two layers. Evaluation keeps a bias in a dict, branches on values, or computes in a region of its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.biases = way, {}
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and self.way == "cache":
            self.biases.setdefault("key", self.one.bias.detach() * 2)
        if not self.training and self.way == "branch" and x.sum() > 1e9:
            return x
        if not self.training and self.way == "region":
            with torch.autocast("cpu", enabled=False):
                return self.other(torch.tanh(self.one(x)))
        return self.other(torch.tanh(self.one(x)))


@pytest.mark.parametrize("way", ["cache", "branch", "region"])
def test_every_cut_of_training_is_one_of_evaluation(way):
    module = nn.Sequential(*(Block(way) for _ in range(3))).train()
    arguments = CallArguments.of([torch.randn(3, 4)])
    graphs = find_graphs(module, arguments)
    assert graphs.evaluation.called.names <= graphs.training.called.names
    units = graphs.recipes[0].facts.units
    assert len(units) >= 3
    for place in range(1, len(units)):
        stage_of = {name: int(number >= place) for number, unit in enumerate(units) for name in unit}
        stages, _ = CutGraphs(graphs, stage_of).cut(direct=False)
        values = arguments.tensors
        for stage in stages.stages:
            values = stage.module(*values)
        assert torch.equal(values[0], module(*arguments.tensors))
