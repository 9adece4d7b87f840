"""GPT-2 on padded rows of unlike lengths, trained for epochs by a pipeline, and by plain torch in whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from jellybean.documents import TrainingDocument
from jellybean.training.data.randomness import epoch_order
from jellybean.training.train import train
from tests.integration.training.models.zoo import DTYPE, LENGTH, ZOO
from tests.support.training_inputs import set_up_cpu_run, training_document

ROWS, TEST_ROWS, BATCH, MICROBATCHES, EPOCHS, LR = 22, 13, 8, 3, 2, 0.5
COUNTED = 7  # words that are counted
PADDING = -100
Tensors = dict[str, torch.Tensor]


class Measured(NamedTuple):
    """An epoch: mean loss of its updates, and loss, perplexity and accuracy on the test rows."""

    loss: float
    test_loss: float
    perplexity: float | None
    accuracy: float | None


def gpt2() -> torch.nn.Module:
    return ZOO["gpt2"].model().to(DTYPE)


def _padded(seed: int, count: int) -> Tensors:
    """Rows of 2 to LENGTH tokens that count up, shortest first: micro-batches have unlike numbers of labels."""
    maker = torch.Generator().manual_seed(seed)
    tokens = 1 + (torch.randint(0, COUNTED, (count, 1), generator=maker) + torch.arange(LENGTH)) % COUNTED
    valid = torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (count, 1), generator=maker).sort(0).values
    return {"input_ids": tokens, "attention_mask": valid.long(), "labels": tokens.masked_fill(~valid, PADDING)}


def labels_inside() -> dict[str, Tensors]:
    return {"train": _padded(1, ROWS), "test": _padded(2, TEST_ROWS)}


def labels_beside() -> dict[str, tuple[Tensors, torch.Tensor]]:
    found = {}
    for part, rows in labels_inside().items():
        found[part] = {name: value for name, value in rows.items() if name != "labels"}, _next(rows)
    return found


def _next(rows: Tensors) -> torch.Tensor:
    """The token after each one: the target of its scores."""
    return torch.cat([rows["labels"][:, 1:], torch.full((len(rows["labels"]), 1), PADDING)], dim=1)


@dataclass(frozen=True)
class TrainPadded:
    """Train `devices` x `replicas` ranks for EPOCHS; returns what each epoch measured. `folder`: of checkpoints."""

    loss: str
    schedule: str
    devices: int
    folder: str
    replicas: int = 1

    @property
    def document(self) -> TrainingDocument:
        return training_document(
            LR,
            model=f"{__name__}:gpt2",
            data=f"{__name__}:{'labels_inside' if self.loss == 'model' else 'labels_beside'}",
            loss=self.loss,
            epochs=EPOCHS,
            batch=BATCH,
            microbatches=MICROBATCHES,
            devices=self.devices,
            replicas=self.replicas,
            schedule=self.schedule,
            metrics=("accuracy", "perplexity"),
        )

    def __call__(self, rank: int) -> list[Measured]:
        run = set_up_cpu_run(self.document, rank)
        folder = Path(self.folder) / f"{self.loss}-{self.schedule}"
        epochs = train(run, self.document, folder, lambda epoch: None, lambda text: None).epochs
        return [Measured(e.loss, e.test_loss, e.metrics["perplexity"], e.metrics["accuracy"]) for e in epochs]


def whole_batches(*, of_model: bool) -> list[Measured]:
    """The same on one device, a whole batch at a time. `of_model`: the loss is the model's, otherwise torch's."""
    torch.manual_seed(0)
    module, data = gpt2(), labels_inside()

    def loss_and_scores(rows: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = module(**rows)
        if of_model:
            return outputs.loss, outputs.logits
        targets = _next(rows).flatten()
        return functional.cross_entropy(outputs.logits.flatten(0, 1), targets, ignore_index=PADDING), outputs.logits

    def measured() -> tuple[float, float]:
        with torch.no_grad():
            loss, scores = loss_and_scores(data["test"])
        targets = _next(data["test"])
        right, valid = (scores.argmax(2) == targets).sum(), (targets != PADDING).sum()
        return float(loss), 100.0 * float(right) / float(valid)

    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    found: list[Measured] = []
    for epoch in range(EPOCHS):
        losses: list[float] = []
        order: Any = epoch_order(ROWS, 0, epoch)
        for own in order.split(BATCH):
            module.train()
            optimizer.zero_grad()
            loss, _ = loss_and_scores({name: value[own] for name, value in data["train"].items()})
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        module.eval()
        test_loss, accuracy = measured()
        perplexity = float(torch.tensor(test_loss, dtype=DTYPE).exp())
        found.append(Measured(sum(losses) / len(losses), test_loss, perplexity, accuracy))
    return found
