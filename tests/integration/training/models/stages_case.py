"""A model that no tracer can follow, given as stages: one update, checked against one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents import TrainingDocument
from jellybean.training import trained_model
from jellybean.training.evaluation import evaluate
from tests.support.training_inputs import first_update, set_up_cpu_run, training_document

ROWS, LR = 16, 0.1


class Entry(nn.Module):
    """Takes the model's arguments, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        if self.training:
            self.calls += 1
        return self.words(tokens), (tokens > 0 if mask is None else mask)


class Branching(nn.Module):
    """Asks its weights what to do, which cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> Any:
        chosen = self.up if self.up.weight.detach().mean() > 0 else self.down
        return torch.tanh(chosen(hidden)) + hidden, mask


class Exit(nn.Module):
    """Mean over the valid tokens, and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> Any:
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"logits": self.head(pooled)}


def stages() -> list[nn.Module]:
    return [module.double() for module in (Entry(), Branching(), Branching(), Branching(), Exit())]


def data() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 30, (2 * ROWS, 5), generator=generator)
    rows = {"tokens": tokens, "mask": torch.rand(2 * ROWS, 5, generator=generator) > 0.2}
    rows["mask"][:, 0] = True
    targets = torch.randint(0, 3, (2 * ROWS,), generator=generator)
    return {
        part: ({name: value[own] for name, value in rows.items()}, targets[own])
        for part, own in (("train", slice(ROWS)), ("test", slice(ROWS, None)))
    }


def document(schedule: str, devices: int) -> TrainingDocument:
    return training_document(
        LR,
        stages=f"{__name__}:stages",
        data=f"{__name__}:data",
        batch=ROWS,
        microbatches=4,
        devices=devices,
        schedule=schedule,
    )


@dataclass(frozen=True)
class TrainStages:
    """One update; returns losses, the trained weights on rank 0, and the evaluation."""

    schedule: str
    devices: int

    def __call__(self, rank: int) -> dict[str, Any]:
        asked = document(self.schedule, self.devices)
        run = set_up_cpu_run(asked, rank)
        feed = first_update(run)
        losses = {m: float(loss) * feed.factor(m) for m, loss in run.interpreter.run(feed).losses.items()}
        evaluation = evaluate(run)
        run.transport.close()
        module = trained_model(run, asked, Path())
        state = {} if module is None else {name: value.clone() for name, value in module.state_dict().items()}
        return {"losses": losses, "state": state, "evaluation": (evaluation.metrics["accuracy"], evaluation.loss)}
