"""Evaluation: the test rows run through the pipeline, and the last stage's rank adds up what is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from jellybean.training.data.agreement import check_same_rows
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.rows import MicrobatchIndex, ReadPlan
from jellybean.training.data.sampler import TestSampler
from jellybean.training.losses import SUM
from jellybean.training.metrics import MeanLoss, Measure, SummedLoss
from jellybean.training.setup import RankRun
from jellybean.training.stages.evaluation_pass import WINDOW


@dataclass(frozen=True)
class Evaluation:
    """`loss`: mean loss over the test rows. `metrics`: by name; None where not defined for this data."""

    loss: float
    metrics: dict[str, float | None]


def evaluate(run: RankRun) -> Evaluation:
    """Loss and metrics on the test rows, on every rank.

    A collective call. Micro-batches have the size of those in training, and replicas share them.
    """
    rank, rows = run.rank, run.data.test
    replicas = dist.get_world_size() // (run.schedule.devices * rank.tensor)
    division = TestSampler(rows.rows, max(1, run.sampler.size), replicas)
    reader = rows.read(ReadPlan(division, replica=rank.replica, uses=lambda microbatch: run.evaluation.reads))
    feed = IterationFeed(reader, 0, rank.device, 0, rank.replica, 0)
    loss = SummedLoss(run.loss) if run.data.counts == SUM else MeanLoss(run.loss)
    measures = {name: make() for name, make in run.metrics.items()}

    def collect(microbatch: int, tensors: Any) -> None:
        if rank.tensor_index:  # another rank measures the same outputs
            return
        outputs, target = run.result.nest(tensors), feed.target(microbatch)
        weight = reader.weight(MicrobatchIndex(0, microbatch))
        for measure in (loss, *measures.values()):
            measure.add(outputs, target, weight)

    own = len(range(rank.replica, division.parts, replicas))
    windows = math.ceil(math.ceil(division.parts / replicas) / WINDOW)
    try:
        with torch.no_grad():
            run.evaluation.run(own, windows, feed.inputs, _weights(run), collect)
        check_same_rows([reader.digest()], run.data.name, "of the test")
    finally:
        reader.close()
    return Evaluation(_reduced(loss) or 0.0, {name: _reduced(measure) for name, measure in measures.items()})


def _weights(run: RankRun) -> dict[int, dict[str, torch.Tensor]]:
    """The newest weights, or their averages, and the buffers of the stages of the first pipe."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for (number, pipe), stage in run.held.items():
        if pipe:
            continue
        weights: dict[str, torch.Tensor] = dict(stage.versions.parameters)
        if run.updates.averages is not None:
            averages = run.updates.averages.of((number, pipe))
            weights |= {name: value.to(weights[name].dtype) for name, value in averages.items()}
        found[number] = {**weights, **dict(stage.module.named_buffers())}
    return found


def _reduced(measure: Measure) -> float | None:
    totals = torch.tensor(measure.totals(), dtype=torch.float64)
    dist.all_reduce(totals)
    return measure.value(totals.tolist())
