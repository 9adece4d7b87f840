"""What `jellybean train` trains, in this process: documents, inputs, and a rank's run on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.training import IterationFeed, Rank, RankRun, ReadPlan, check_inputs, read_inputs, set_up_run
from jellybean.training.inputs import TrainingInputs


def training_document(lr: float, **settings: Any) -> TrainingDocument:
    """A document of one epoch with plain SGD at this rate, unless `settings` say otherwise."""
    defaults = {"kind": "Training", "epochs": 1, "optimizer": OptimizerSpec(name="sgd", lr=lr)}
    return TrainingDocument(**{**defaults, **settings})


def load_training_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model with all weights, data and loss, and check them. TrainingError if they do not fit together."""
    inputs = read_inputs(document, directory)
    return inputs.ruled(check_inputs(inputs, document).rules)


def set_up_cpu_run(document: TrainingDocument, rank: int, directory: Path = Path()) -> RankRun:
    """A rank's run, with all that it trains in host memory. A collective call."""
    return set_up_run(document, directory, Rank(rank, document.devices, torch.device("cpu")))


def first_update(run: RankRun) -> IterationFeed:
    """The micro-batches of the first update."""
    reader = run.data.train.read(ReadPlan(run.sampler, replica=run.rank.replica))
    return IterationFeed(reader, 0, torch.device("cpu"), 0, 0, 0)
