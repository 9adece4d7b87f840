"""A model whose blocks do what no graph records, on two processes: one update, checked against one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.training import trained_model
from jellybean.training.evaluation import evaluate
from tests.support.training_inputs import first_update, set_up_cpu_run, training_document

ROWS, LR, WIDTH = 14, 0.1, 8


class Block(nn.Module):
    """Counts its calls in Python, assigns its buffer anew, and keeps a doubled weight while it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls, self.kept = 0, None

    def train(self, mode: bool = True) -> Block:
        self.kept = None
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        elif self.kept is None:
            self.kept = 2 * self.table
        table = 2 * self.table if self.training else self.kept
        return x + torch.tanh(self.layer(x)) * table / (1 + self.calls) + self.mean


def net() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, WIDTH), Block(), Block(), Block(), nn.Linear(WIDTH, 1)).double()
    module[2].layer.weight.register_hook(lambda gradient: gradient * 0.5)
    return module


def data() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2 * ROWS, 4, generator=generator, dtype=torch.float64)
    y = x.mean(1, keepdim=True)
    return {"train": (x[:ROWS], y[:ROWS]), "test": (x[ROWS:], y[ROWS:])}


DOCUMENT = training_document(
    LR,
    model=f"{__name__}:net",
    data=f"{__name__}:data",
    loss="mse",
    batch=ROWS,
    microbatches=4,
    devices=2,
    schedule="1f1b",
)


def train_called(rank: int) -> dict[str, Any]:
    """One update; returns the trained weights on rank 0, the test loss, and the warning."""
    run = set_up_cpu_run(DOCUMENT, rank)
    run.interpreter.run(first_update(run))
    evaluation = evaluate(run)
    run.transport.close()
    module = trained_model(run, DOCUMENT, Path())
    state = {} if module is None else {name: value.clone() for name, value in module.state_dict().items()}
    return {"state": state, "loss": evaluation.loss, "warning": run.warning}
