"""scikit-learn's digits, trained by every schedule on two ranks, and by plain torch on one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jellybean.documents import LrSpec, OptimizerSpec, TrainingDocument
from jellybean.pipeline import load_function
from jellybean.training.data.rows import MemoryRows
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.optimization.lr_schedules import lr_factor
from jellybean.training.train import train
from tests.integration.training.models.whole_model import measured
from tests.support.paths import EXAMPLES
from tests.support.training_inputs import load_training_inputs, set_up_cpu_run

EXAMPLE = EXAMPLES / "pipeline"
DEVICES = 2


def transformer_double() -> torch.nn.Module:
    return load_function("nets.py", "transformer", EXAMPLE)().double()


def conv_double() -> torch.nn.Module:
    return load_function("nets.py", "conv", EXAMPLE)().double()


def digits_double() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {part: (rows.double(), own) for part, (rows, own) in load_function("nets.py", "digits", EXAMPLE)().items()}


def document(schedule: str, model: str, epochs: int, *, exact: bool = False) -> TrainingDocument:
    """The example's document, with 32 samples in 4 micro-batches per update. `exact`: in double precision."""
    place, more = (__name__, "_double") if exact else ("nets.py", "")
    return TrainingDocument(
        kind="Training",
        model=f"{place}:{model}{more}",
        data=f"{place}:digits{more}",
        epochs=epochs,
        batch=32,
        microbatches=4,
        optimizer=OptimizerSpec(name="adamw", lr=0.001, weight_decay=0.01),
        lr_schedule=LrSpec(name="cosine", warmup=1.0),
        devices=DEVICES,
        schedule=schedule,
        clip=1.0,
    )


@dataclass(frozen=True)
class Learn:
    """Train; returns (mean loss, accuracy) of every epoch."""

    schedule: str
    model: str
    epochs: int
    folder: str  # of its checkpoints
    exact: bool = False

    def __call__(self, rank: int) -> list[tuple[float, float | None]]:
        asked = document(self.schedule, self.model, self.epochs, exact=self.exact)
        run = set_up_cpu_run(asked, rank, EXAMPLE)
        folder = Path(self.folder) / f"{self.schedule}-{self.model}-{self.exact}"
        found = train(run, asked, folder, lambda epoch: None, lambda text: None).epochs
        return [(epoch.loss, epoch.accuracy) for epoch in found]


def one_device(model: str, epochs: int, *, exact: bool = False) -> list[tuple[float, Any]]:
    """The same rows in whole batches, with plain torch."""
    asked = document("gpipe", model, epochs, exact=exact)
    material = load_training_inputs(asked, EXAMPLE)
    data = material.data.train
    assert isinstance(data, MemoryRows)
    sampler = MicrobatchSampler(data.rows, asked.batch, asked.microbatches, 1)
    optimizer = torch.optim.AdamW(material.module.parameters(), lr=asked.optimizer.lr, weight_decay=0.01)
    factor = lr_factor(asked.lr_schedule, sampler.updates, epochs)
    told: list[tuple[float, Any]] = []
    for epoch in range(epochs):
        total = 0.0
        for iteration in range(sampler.iterations):
            rows = data.order(epoch)[iteration * asked.batch :][: sampler.rows(iteration)]
            for group in optimizer.param_groups:
                group["lr"] = asked.optimizer.lr * factor(epoch * sampler.updates + iteration)
            optimizer.zero_grad()
            samples = data.samples
            loss = material.loss(material.module(samples.inputs.tensors[0][rows]), samples.target(rows))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(material.module.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach())
        told.append((total / sampler.iterations, measured(material.module, material)[0]))
    return told
