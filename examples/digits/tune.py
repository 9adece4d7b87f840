"""One more variant of `shape`, for `jellybean train`: directions of strokes and one hidden layer.

training.yaml names what is here. `crops` draws the same photographs as train.py does, of the same scans.
"""

from __future__ import annotations

import numpy as np
import strips
import torch
from nets import Net, Spec
from torch import nn

SPEC = Spec(strokes=True, pool=2, hidden=192)
VIEWS = 40  # photographs of every scan


class Served(nn.Module):
    """As the other variants are served: crops as bytes [n, 16, 16] -> log-probabilities [n, 10]."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.net = Net(spec)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.net(crops.float()), 1)


def shape() -> nn.Module:
    """What training.yaml trains."""
    return Served(SPEC)


def crops() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Crops of the scans to train on, and of those kept for tuning: none is in the held-out strips."""
    return {
        "train": strips.crops(strips.load_scans("train"), VIEWS, np.random.default_rng(5)),
        "test": strips.crops(strips.load_scans("tune"), 8, np.random.default_rng(3)),
    }
