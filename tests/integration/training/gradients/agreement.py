"""Models that differ between processes, an optimizer with numbers of Python, and a model of another size."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.integration.training.gradients.nets import WIDTH


def by_numpy() -> nn.Module:
    """Its weights are of numpy's and Python's generators."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).double()
    with torch.no_grad():
        layers[0].weight.copy_(torch.from_numpy(np.random.randn(WIDTH, WIDTH)))
        layers[2].bias.fill_(random.random())
    return layers


def by_system() -> nn.Module:
    """Its weights are of no generator that has a seed."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).double()
    with torch.no_grad():
        layers[0].bias.copy_(torch.tensor(list(os.urandom(WIDTH))) / 255)
    return layers


def layers(count: int) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)), nn.Linear(WIDTH, 1)).double()


def three() -> nn.Module:
    return layers(3)


def two() -> nn.Module:
    """Of which the names are some of those of `three`."""
    made = three()
    return _Named({"0": made[0], "3": made[3]})


class _Named(nn.Module):
    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.children():
            x = part(x)
        return x


class Fading(torch.optim.Optimizer):
    """Steps that fade, by a number of Python."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["factor"] = state.get("factor", 1.0) * 0.9
                state["steps"] = state.get("steps", 0) + 1
                assert isinstance(state["steps"], int)
                weight.sub_(group["lr"] * state["factor"] / state["steps"] * weight.grad)
