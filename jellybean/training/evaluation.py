"""Evaluation: the test rows run through the pipeline, and the last stage's rank adds up what is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from jellybean.training.data.agreement import check_same_rows
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.rows import Place, ReadPlan
from jellybean.training.data.sampler import TestSampler
from jellybean.training.losses import class_dimension, class_scores
from jellybean.training.samples import IGNORED
from jellybean.training.setup import RankRun
from jellybean.training.stages.evaluation_pass import WINDOW
from jellybean.training.stages.stage import LossFunction


class Measure(Protocol):
    """A measure of the model on the test rows, as sums that ranks can add."""

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        """Count one micro-batch. `weight`: how much its rows count in a mean loss."""

    def totals(self) -> list[float]:
        """The sums so far; as many on every rank."""

    def value(self, totals: Sequence[float]) -> float | None:
        """The measure of all ranks' sums; None if it is not defined for this data."""


@dataclass
class MeanLoss:
    """The mean loss over the test rows."""

    loss: LossFunction
    total: float = 0.0
    weight: float = 0.0

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        if weight:
            self.total += float(self.loss(outputs, target)) * weight
            self.weight += weight

    def totals(self) -> list[float]:
        return [self.total, self.weight]

    def value(self, totals: Sequence[float]) -> float:
        return totals[0] / max(1.0, totals[1])


@dataclass
class Accuracy:
    """Percent of the targets that the highest score names; None if targets are no classes."""

    right: int = 0
    counted: int = 0

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        if isinstance(target, torch.Tensor) and not target.is_floating_point():
            right, counted = correct(class_scores(outputs), target)
            self.right += right
            self.counted += counted

    def totals(self) -> list[float]:
        return [float(self.right), float(self.counted)]

    def value(self, totals: Sequence[float]) -> float | None:
        return 100.0 * totals[0] / totals[1] if totals[1] else None


def evaluate(run: RankRun) -> tuple[float | None, float]:
    """Accuracy in percent (None if targets are no classes) and mean loss on the test rows, on every rank.

    A collective call. Micro-batches have the size of those in training, and replicas share them.
    """
    rank, rows = run.rank, run.data.test
    replicas = dist.get_world_size() // run.schedule.devices
    division = TestSampler(rows.rows, max(1, run.sampler.size), replicas)
    reader = rows.read(ReadPlan(division, replica=rank.replica, uses=lambda microbatch: run.evaluation.reads))
    feed = IterationFeed(reader, 0, rank.device, 0, rank.replica, 0)
    measures: list[Measure] = [MeanLoss(run.loss), Accuracy()]

    def collect(microbatch: int, tensors: Any) -> None:
        outputs, target = run.result.nest(tensors), feed.target(microbatch)
        weight = reader.weight(Place(0, microbatch))
        for measure in measures:
            measure.add(outputs, target, weight)

    own = len(range(rank.replica, division.parts, replicas))
    windows = math.ceil(math.ceil(division.parts / replicas) / WINDOW)
    try:
        with torch.no_grad():
            run.evaluation.run(own, windows, feed.inputs, _weights(run), collect)
        check_same_rows([reader.digest()], run.data.name, "of the test")
    finally:
        reader.close()
    accuracy, loss = (_reduced(measure) for measure in reversed(measures))
    return accuracy, loss if loss is not None else 0.0


def _weights(run: RankRun) -> dict[int, dict[str, torch.Tensor]]:
    """The newest weights and buffers of the stages of the first pipe."""
    return {
        number: {**stage.versions.parameters, **dict(stage.module.named_buffers())}
        for (number, pipe), stage in run.held.items()
        if pipe == 0
    }


def _reduced(measure: Measure) -> float | None:
    totals = torch.tensor(measure.totals(), dtype=torch.float64)
    dist.all_reduce(totals)
    return measure.value(totals.tolist())


def correct(scores: torch.Tensor, targets: torch.Tensor) -> tuple[int, int]:
    """(targets that the highest score names, targets that count)."""
    counts = targets != IGNORED
    chosen = scores.argmax(class_dimension(scores, targets))
    return int(((chosen == targets) & counts).sum()), int(counts.sum())
