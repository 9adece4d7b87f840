"""A model measured on one device, without a pipeline: what the pipeline's evaluation is compared with."""

from __future__ import annotations

import torch
from torch import nn

from jellybean.training.inputs import TrainingInputs
from jellybean.training.losses import class_scores
from jellybean.training.metrics import correct


def measured(module: nn.Module, inputs: TrainingInputs) -> tuple[float | None, float]:
    """Accuracy in percent (None if targets are no classes) and mean loss on the test rows, in one batch."""
    samples = inputs.data.test.example(inputs.data.test.rows)
    rows = torch.arange(len(samples))
    with torch.no_grad():
        module.eval()
        arguments, targets = samples.arguments(rows), samples.target(rows)
        outputs = arguments.form.call(module, arguments.tensors)
        module.train()
        loss = float(inputs.loss(outputs, targets))
    if samples.classes is None:
        return None, loss
    right, counted = correct(class_scores(outputs), targets)
    return 100.0 * right / counted, loss
