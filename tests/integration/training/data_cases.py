"""Data sets, DataLoaders and streams of the same rows, trained by two ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from jellybean.documents import FunctionSpec, LrSpec, OptimizerSpec, TrainingDocument
from jellybean.training import TrainingError
from jellybean.training.train import train
from tests.support.training_inputs import set_up_cpu_run

ROWS, TESTS, LENGTH = 54, 20, 4


def net() -> nn.Module:
    layers = [nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).double()


class PerToken(nn.Module):
    """Scores of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 9)).double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(tokens)


def per_token() -> nn.Module:
    return PerToken()


def arrays() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows = torch.randn(ROWS + TESTS, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = rows[:, :3].argmax(1)
    return {"train": (rows[:ROWS], targets[:ROWS]), "test": (rows[ROWS:], targets[ROWS:])}


class Rows(Dataset):
    def __init__(self, tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
        return tuple(value[row] for value in self.tensors)


class OfThisProcess(Rows):
    """Rows that differ from process to process, but not the first."""

    def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
        inputs, target = super().__getitem__(row)
        return (inputs + os.getpid() if row > 1 else inputs), target


def data_sets() -> dict[str, Any]:
    return {part: Rows(tensors) for part, tensors in arrays().items()}


def in_order() -> dict[str, Any]:
    return {part: DataLoader(rows) for part, rows in data_sets().items()}


def streams() -> dict[str, Any]:
    def train_rows() -> Iterator[Any]:
        return iter(data_sets()["train"])

    def test_rows() -> Iterator[Any]:
        return iter(data_sets()["test"])

    return {"train": train_rows, "test": test_rows}


def of_this_process() -> dict[str, Any]:
    return {"train": OfThisProcess(arrays()["train"]), "test": Rows(arrays()["test"])}


def unseeded() -> dict[str, Any]:
    rows = torch.randn(ROWS, 6, dtype=torch.float64) + os.getpid()
    return {"train": (rows, rows[:, :3].argmax(1)), "test": arrays()["test"]}


def padded() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 9, (ROWS + TESTS, LENGTH), generator=generator)
    valid = torch.arange(LENGTH) < torch.randint(0, LENGTH + 1, (ROWS + TESTS, 1), generator=generator)
    targets = ((tokens + 1) % 9).masked_fill(~valid, -100)
    return {"train": (tokens[:ROWS], targets[:ROWS]), "test": (tokens[ROWS:], targets[ROWS:])}


def padded_in_order() -> dict[str, Any]:
    return {part: DataLoader(Rows(tensors)) for part, tensors in padded().items()}


def padded_streams() -> dict[str, Any]:
    def train_rows() -> Iterator[Any]:
        return iter(Rows(padded()["train"]))

    return {"train": train_rows, "test": Rows(padded()["test"])}


@dataclass(frozen=True)
class TrainOn:
    """Train on a data function of this module; returns each epoch's losses, test loss and accuracy, or the error."""

    data: str
    folder: str
    schedule: str = "1f1b"
    model: str = "net"
    replicas: int = 1
    lr_schedule: str = "constant"
    plan: str = ""  # a plan's file that fixes the stages

    @property
    def document(self) -> TrainingDocument:
        stated = {"rows_per_epoch": ROWS, "test_rows": TESTS} if "streams" in self.data else {}
        if self.data == "padded_streams":
            stated.pop("test_rows")
        plain = self.data in ("arrays", "padded", "unseeded")
        spec = FunctionSpec(function=f"{__name__}:{self.data}", **stated)
        lr = {"max_lr": 0.05} if self.lr_schedule == "OneCycleLR" else {}
        return TrainingDocument(
            kind="Training",
            model=f"{__name__}:{self.model}",
            data=spec.function if plain else spec,
            epochs=2,
            batch=12,
            microbatches=3,
            optimizer=OptimizerSpec(name="RMSprop", lr=0.01, groups=[{"match": "*.bias", "lr": 0.02}]),
            lr_schedule=LrSpec(name=self.lr_schedule, **lr),
            devices=2 // self.replicas,
            replicas=self.replicas,
            schedule=self.schedule,
            plan=self.plan or None,
        )

    def __call__(self, rank: int) -> Any:
        document = self.document
        try:
            run = set_up_cpu_run(document, rank)
            found = train(run, document, Path(self.folder), lambda epoch: None, lambda text: None).epochs
        except TrainingError as error:
            return str(error)
        return [(epoch.losses, epoch.test_loss, epoch.accuracy) for epoch in found]
