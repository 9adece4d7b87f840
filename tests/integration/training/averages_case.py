"""Training with averages of the weights and metrics of one's own, on two ranks; and the same in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents import TrainingDocument
from jellybean.training import trained_model
from jellybean.training.train import train
from tests.integration.training.data_cases import arrays
from tests.integration.training.models.whole_model import measured
from tests.support.training_inputs import load_training_inputs, set_up_cpu_run, training_document

DECAY, LR, BATCH, EPOCHS = 0.9, 0.1, 12, 2


class Tied(nn.Module):
    """Two layers share a weight; one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.layers[3].weight = self.layers[0].weight
        self.layers[1].requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return self.head(rows)


def tied() -> nn.Module:
    return Tied().double()


def plain() -> nn.Module:
    layers = [part for _ in range(4) for part in (nn.Linear(6, 6), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(6, 3)).double()


def error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) != targets).double().mean()


@dataclass(frozen=True)
class Averaged:
    """Train; returns (test loss, metrics) by epoch and, on rank 0, the handed back weights and their evaluation."""

    schedule: str
    folder: str
    model: str = "tied"
    replicas: int = 1

    @property
    def document(self) -> TrainingDocument:
        return training_document(
            LR,
            model=f"{__name__}:{self.model}",
            data="tests.integration.training.data_cases:in_order",
            epochs=EPOCHS,
            batch=BATCH,
            microbatches=3,
            devices=2 // self.replicas,
            replicas=self.replicas,
            schedule=self.schedule,
            ema=DECAY,
            metrics=("accuracy", f"{__name__}:error"),
        )

    def __call__(self, rank: int) -> tuple[Any, Any, Any]:
        document = self.document
        run = set_up_cpu_run(document, rank)
        epochs = train(run, document, Path(self.folder), lambda epoch: None, lambda text: None).epochs
        found = [(epoch.test_loss, epoch.metrics) for epoch in epochs]
        module = trained_model(run, document, Path())
        if module is None:
            return found, None, None
        weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
        return found, weights, measured(module, load_training_inputs(document, Path()))


def averages_in_plain_torch() -> dict[str, torch.Tensor]:
    """Averages of the tied model's weights, whose rows come in order."""
    torch.manual_seed(0)
    module = tied()
    optimizer = torch.optim.SGD([value for value in module.parameters() if value.requires_grad], lr=LR)
    averages = {name: value.detach().clone() for name, value in module.state_dict().items()}
    rows, targets = arrays()["train"]
    for _ in range(EPOCHS):
        for part, own in zip(rows.split(BATCH), targets.split(BATCH), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(part), own).backward()
            optimizer.step()
            for name, value in module.state_dict().items():
                averages[name] = DECAY * averages[name] + (1.0 - DECAY) * value
    return averages
