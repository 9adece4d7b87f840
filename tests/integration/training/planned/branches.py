"""A model with parallel branches, and a case that trains it on devices that run them at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from jellybean.pipeline import CallArguments, graph_facts, trace
from jellybean.training import cut_module
from jellybean.training.stages.cut import CutModule
from jellybean_solver.pipeline import Schedule, StageGraph, branch_schedule
from tests.integration.training.cases import Train
from tests.integration.training.nets import WIDTH

JOIN = 4
STAGE_OF_LAYER = (0, 1, 1, 2, 2, 3, JOIN, JOIN)
EDGES = ((0, 1), (0, 2), (0, 4), (1, 4), (2, 4), (3, 4))


class Branches(nn.Module):
    """A stem, two branches of it, a branch of the input, and a join that also reads the stem."""

    def __init__(self, frozen: tuple[int, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in STAGE_OF_LAYER)
        for layer in frozen:
            self.layers[layer].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.layers
        stem = layers[0](x).tanh()
        one = layers[2](layers[1](stem).tanh()).tanh()
        two = layers[4](layers[3](stem).tanh()).tanh()
        three = layers[5](x).tanh()
        return layers[7](layers[6](one + two * three).tanh()) + stem


@dataclass(frozen=True)
class TrainBranches(Train):
    """Train the branches, each stage on its device. `frozen`: layers that are not trained."""

    places: tuple[int, ...] = (0, 0, 1, 2, 0)
    frozen: tuple[int, ...] = ()

    @property
    def schedule(self) -> Schedule:
        ones = (1.0,) * len(self.places)
        return branch_schedule(StageGraph(self.places, EDGES, ones, ones), len(self.sizes[0][0]))

    def chain(self) -> nn.Module:
        return Branches(self.frozen).to(self.dtype)

    def cut(self, chain: nn.Module) -> CutModule:
        inputs = (torch.zeros(3, WIDTH, dtype=self.dtype),)
        traced = trace(chain, CallArguments.of(inputs))
        stage_of, now = {}, 0
        for node in traced.graph.graph.nodes:
            if node.op == "call_module":
                now = STAGE_OF_LAYER[int(str(node.target).split(".")[1])]
            elif node.op == "call_function":
                now = JOIN  # sums and products of branches
            if node.op in ("call_module", "call_function", "call_method"):
                stage_of[node.name] = now
        return cut_module(traced, graph_facts(traced, inputs), stage_of, direct=True)
