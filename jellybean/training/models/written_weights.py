"""Weights that a forward writes into: norms that an embedding limits, clipped weights, averages of other weights.

A stage's copies run different micro-batches, so that such weights would differ between them; and weights that take no
gradient are in no checkpoint, as the model's function gives them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from jellybean.pipeline.torch_gradients import tensor_digest
from jellybean.pipeline.torch_state import seed_generators, state_kept

_ROUNDING = 1e-5  # relative, in single precision


@dataclass(frozen=True)
class WrittenWeight:
    """`frozen`: it takes no gradient. `moves`: a second forward on the same rows writes other numbers."""

    name: str
    frozen: bool
    moves: bool


def written_weights(module: nn.Module, forward: Callable[[], Any]) -> list[WrittenWeight]:
    """The weights that a forward in training mode writes into. The module is afterwards as before."""
    weights = dict(module.named_parameters())
    with state_kept(module):
        states = [_states(weights)]
        for _ in range(2):
            seed_generators(0)
            with torch.no_grad():
                forward()
            states.append(_states(weights))
    before, once, twice = states
    return [
        WrittenWeight(name, not value.requires_grad, _apart(once[name][1], twice[name][1]))
        for name, value in weights.items()
        if once[name][0] != before[name][0] or not torch.equal(once[name][1], before[name][1])
    ]


def _apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether numbers differ by more than rounding, as of a norm that is limited once more."""
    return bool((one - other).abs().max() > _ROUNDING * one[0])


def _states(weights: dict[str, nn.Parameter]) -> dict[str, tuple[int, torch.Tensor]]:
    """How often each was written in place, and a digest of its numbers: writes by `.data` are not counted."""
    return {name: (value._version, torch.nan_to_num(tensor_digest(value))) for name, value in weights.items()}
