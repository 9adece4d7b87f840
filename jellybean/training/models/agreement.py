"""Whether all processes have made the same model: a function may draw initial weights that no seed decides."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.pipeline.torch_gradients import tensor_digest
from jellybean.training.errors import TrainingError
from jellybean.training.models.building import constants_of
from jellybean.training.processes.ranks import gather_from_ranks

_SAME = 1e-5  # of digests, relative to the norm: other numbers of threads round sums otherwise


def check_same_model(module: nn.Module, name: str) -> None:
    """TrainingError on all ranks if one has other weights or constants than the first. A collective call."""
    if dist.get_world_size() == 1:
        return
    own = {key: tensor_digest(value) for key, value in (*module.named_parameters(), *constants_of(module))}
    first: list[Any] = [own]
    dist.broadcast_object_list(first, src=0)
    other = next((key for key in first[0].keys() | own.keys() if _differ(first[0].get(key), own.get(key))), "")
    differing = sorted(filter(None, gather_from_ranks(other)))
    if differing:
        raise TrainingError(
            f"{name} gives another model in each process: {differing[0]} differs between them, though the generators "
            "of torch, numpy and Python have the document's seed; let it give the same one, with fixed seeds"
        )


def _differ(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is not other
    return not torch.allclose(one, other, rtol=0.0, atol=_SAME * float(one[0].nan_to_num()), equal_nan=True)
