"""Evaluation: gathers the whole model from all ranks' stages and measures it on the test rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.training.losses import class_dimension, class_scores
from jellybean.training.samples import IGNORED
from jellybean.training.setup import RankRun, TrainingInputs

_ROWS = 512  # rows per evaluation batch


def gather_model(run: RankRun) -> nn.Module | None:
    """On rank 0 the module with all stages' weights and buffers; None on the other ranks. A collective call."""
    own: dict[str, torch.Tensor] = {}
    if run.rank.replica == 0:
        for (_, pipe), stage in run.held.items():
            if pipe == 0:
                own |= {name: value.detach().cpu() for name, value in stage.versions.parameters.items()}
                own |= {name: value.detach().cpu() for name, value in stage.buffers.items()}
    told: list[Any] | None = [None] * dist.get_world_size() if run.rank.is_first else None
    dist.gather_object(own, told)
    if told is None:
        return None
    module = run.material.module
    places = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in (item for one in told for item in one.items()):
            places[name].copy_(value)
    return module


def evaluate(module: nn.Module, material: TrainingInputs) -> tuple[float | None, float]:
    """Accuracy in percent (None if targets are no classes) and mean loss on the test rows."""
    with torch.no_grad():
        module.eval()
        found = _evaluate(module, material)
        module.train()
    return found


def _evaluate(module: nn.Module, material: TrainingInputs) -> tuple[float | None, float]:
    device = next((value.device for value in module.parameters()), torch.device("cpu"))
    samples, total_loss, total_weight = material.data.test, 0.0, 0.0
    right, counted = 0, 0
    for first in range(0, len(samples), _ROWS):
        rows = torch.arange(first, min(first + _ROWS, len(samples)))
        arguments, targets = samples.arguments(rows), samples.target(rows, device)
        outputs = arguments.form.call(module, [value.to(device) for value in arguments.tensors])
        weight = samples.weight(rows)
        total_loss += float(material.loss(outputs, targets)) * weight if weight else 0.0
        total_weight += weight
        if samples.classes is not None:
            part = correct(class_scores(outputs), targets)
            right, counted = right + part[0], counted + part[1]
    return (100.0 * right / counted if counted else None), total_loss / max(1.0, total_weight)


def correct(scores: torch.Tensor, targets: torch.Tensor) -> tuple[int, int]:
    """(targets that the highest score names, targets that count)."""
    counts = targets != IGNORED
    chosen = scores.argmax(class_dimension(scores, targets))
    return int(((chosen == targets) & counts).sum()), int(counts.sum())
