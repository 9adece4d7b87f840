"""A model that computes something else in evaluation than in training, trained for an update and measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.training import trained_model
from jellybean.training.epoch import average_statistics
from jellybean.training.evaluation import evaluate
from tests.integration.training.models.whole_model import measured
from tests.support.training_inputs import first_update, load_training_inputs, set_up_cpu_run

ROWS = 48


class TwoModes(nn.Module):
    """Dropout, batch norm, a tied weight, and an output that exists in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.middle = nn.Linear(6, 6)
        self.aside, self.last, self.head = nn.Linear(6, 3), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
        self.last.weight = self.middle.weight
        self.unused = nn.Linear(2, 2)  # handed back as it came

    def forward(self, rows: torch.Tensor) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.first(rows))))
        hidden = torch.relu(self.middle(hidden)) + rows
        scores = self.head(torch.tanh(self.last(hidden)))
        return (scores, self.aside(hidden)) if self.training else scores


def two_modes() -> nn.Module:
    return TwoModes().double()


def rows_of_three_classes() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(2 * ROWS, 6, generator=generator, dtype=torch.float64)
    targets = inputs[:, :3].argmax(1)
    targets[::5] = -100
    return {"train": (inputs[:ROWS], targets[:ROWS]), "test": (inputs[ROWS:-1], targets[ROWS:-1])}


@dataclass(frozen=True)
class MeasureTwoModes:
    """One update; returns the pipeline's evaluation and, on rank 0, that of the handed back model on one device."""

    schedule: str
    devices: int
    replicas: int = 1

    def __call__(self, rank: int) -> tuple[Any, Any, dict[str, torch.Tensor]]:
        document = TrainingDocument(
            kind="Training",
            model=f"{__name__}:two_modes",
            data=f"{__name__}:rows_of_three_classes",
            epochs=1,
            batch=16,
            microbatches=4,
            optimizer=OptimizerSpec(name="adam", lr=0.1),
            devices=self.devices,
            replicas=self.replicas,
            schedule=self.schedule,
        )
        run = set_up_cpu_run(document, rank)
        run.interpreter.run(first_update(run))
        average_statistics(run)
        evaluation = evaluate(run)
        found = evaluation.metrics["accuracy"], evaluation.loss
        run.transport.close()
        module = trained_model(run, document, Path())
        if module is None:
            return found, None, {}
        inputs = load_training_inputs(document, Path())
        return found, measured(module, inputs), {name: value.clone() for name, value in module.state_dict().items()}
