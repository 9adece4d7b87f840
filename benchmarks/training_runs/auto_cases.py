"""The models and sizes on which `schedule_auto` compares choices with exhaustive runs. Imports no torch by itself."""

from __future__ import annotations

from typing import Any

MODELS = {
    "digits' net": "nets.py:conv",
    "transformer": "nets.py:transformer",
    "wide MLP": "benchmarks.training_runs.auto_cases:wide_mlp",
}
BATCH, MICROBATCHES, WIDTH = 64, 4, 512
FINALISTS, ROUNDS, EPOCHS = 3, 30, 5


def wide_mlp() -> Any:
    """A wide multilayer perceptron over the digits' pictures."""
    from torch import nn

    hidden = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))
