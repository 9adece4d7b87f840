"""training.yaml: what it may say, and reading it. Does not import torch."""

from __future__ import annotations

from jellybean.documents.training.document import AUTO, TRAINING_FILE, TrainingDocument, load_training, metric_name
from jellybean.documents.training.loss import LossSpec
from jellybean.documents.training.optimization import EarlyStopSpec, LrSpec, OptimizerGroup, OptimizerSpec

__all__ = [
    "AUTO",
    "TRAINING_FILE",
    "EarlyStopSpec",
    "LossSpec",
    "LrSpec",
    "OptimizerGroup",
    "OptimizerSpec",
    "TrainingDocument",
    "load_training",
    "metric_name",
]
