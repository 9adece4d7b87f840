"""Small models for the runtime: a skip connection, weights that two layers share, batch norm, in-place activations."""

from __future__ import annotations

import torch
from torch import nn

from jellybean.pipeline import CallArguments, graph_facts, trace
from jellybean.training import cut_module
from jellybean.training.stages.cut import CutModule

WIDTH, LAYERS = 6, 8


class Chain(nn.Module):
    """Eight layers; the first layer's output is added before the last but one."""

    def __init__(self, *, tied: bool = True, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) if norm else nn.Identity() for _ in range(LAYERS))
        self.act, self.drop = nn.LeakyReLU(0.3, inplace=True), nn.Dropout(dropout)
        if tied:
            self.layers[LAYERS - 1].weight = self.layers[0].weight
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = x
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = self.drop(self.act(norm(layer(x))))
            if number == 0:
                early = x
            if number == LAYERS - 2:
                x = x + early * (x.shape[1] - WIDTH + 1)
        return x


def cut_evenly(module: nn.Module, stages: int, inputs: tuple[torch.Tensor, ...]) -> CutModule:
    """Cut between the numbered layers."""
    traced = trace(module, CallArguments.of(inputs))
    stage_of, now = {}, 0
    for node in traced.graph.graph.nodes:
        if node.op == "call_module" and str(node.target).startswith("layers."):
            now = int(str(node.target).split(".")[1]) * stages // LAYERS
        if node.op in ("call_module", "call_function", "call_method"):
            stage_of[node.name] = now
    return cut_module(traced, graph_facts(traced, inputs), stage_of)


def batches(seed: int, sizes: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random micro-batches of these sizes."""
    maker = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, WIDTH, generator=maker, dtype=torch.float64),
            torch.randn(size, WIDTH, generator=maker, dtype=torch.float64),
        )
        for size in sizes
    ]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error over samples."""
    return (output - target).square().sum(1).mean()


__all__ = ["LAYERS", "WIDTH", "Chain", "batches", "cut_evenly", "loss"]
