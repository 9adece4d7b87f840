"""Hands the trained model back: rank 0 collects the stages' weights and buffers, one tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.training.models.building import fill, load_model, load_skeleton
from jellybean.training.setup import RankRun


def trained_model(run: RankRun, document: TrainingDocument, directory: Path) -> nn.Module | None:
    """On rank 0 the model with the trained weights, in host memory; None on other ranks. A collective call.

    The run ends here: optimizer states are freed first.
    """
    run.updates.optimizers.clear()
    tensors = _gather(run)
    if tensors is None:
        return None
    try:
        module = load_skeleton(document, directory)
    except Exception:  # noqa: BLE001  # a constructor that computes with its parameters; then with memory for them
        module = load_model(document, directory)
    return fill(module, {**run.untrained, **tensors})


def _gather(run: RankRun) -> dict[str, torch.Tensor] | None:
    """On rank 0 all stages' weights and updated buffers by name; None on the other ranks. A collective call."""
    own = _own_tensors(run)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, {name: (tuple(value.shape), value.dtype) for name, value in own.items()})
    found = dict(own) if run.rank.is_first else None
    for owner, kinds in enumerate(told[1 : run.schedule.devices], start=1):
        for name, (shape, dtype) in kinds.items():
            if found is not None:
                found[name] = torch.empty(shape, dtype=dtype)
                dist.recv(found[name], owner)
            elif run.rank.rank == owner:
                dist.send(own[name].contiguous(), 0)
    return found


def _own_tensors(run: RankRun) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    averages = run.updates.averages
    for copy, stage in run.held.items():
        if copy[1] == 0 and run.rank.replica == 0:
            weights = stage.versions.exact | (averages.of(copy) if averages is not None else {})
            found |= {name: value.detach().cpu() for name, value in weights.items()}
            found |= {name: value.detach().cpu() for name, value in stage.buffers.items()}
    return found
