"""The borders of split regions as linear maps over all ranks: values in and out, gradients out and in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from jellybean.training import TensorGroup
from jellybean.training.tensor_parallel.conjugate_collectives import Enter, Gather, GatherForParts, Reduce, Scatter
from jellybean.training.tensor_parallel.layouts import Split

# Of the input and of the output: one value that all ranks have whole, or a value of each rank.
WHOLE, EACH = "whole", "each"
BORDERS = {
    "enter": (WHOLE, EACH),
    "reduce": (EACH, WHOLE),
    "gather": (EACH, WHOLE),
    "scatter": (WHOLE, EACH),
    "gather for parts": (EACH, EACH),
}


@dataclass(frozen=True)
class BorderPass:
    """One rank's forward and backward pass: whole numbers, so that sums are exact."""

    value: torch.Tensor
    output: torch.Tensor
    output_gradient: torch.Tensor
    gradient: torch.Tensor


@dataclass(frozen=True)
class BorderPasses:
    """Passes through every border, on a tensor that is split in two blocks."""

    def __call__(self, rank: int) -> dict[str, BorderPass]:
        ways = torch.distributed.get_world_size()
        group, split = TensorGroup(ways, rank), Split(1, blocks=2)
        borders = {
            "enter": Enter(group),
            "reduce": Reduce(group),
            "gather": Gather(group, split),
            "scatter": Scatter(group, split),
            "gather for parts": GatherForParts(group, split),
        }
        return {
            name: _passed(border, name, rank, 4 if "gather" in name else 4 * ways) for name, border in borders.items()
        }


def _passed(border: nn.Module, name: str, rank: int, width: int) -> BorderPass:
    before, after = (rank if kind == EACH else -1 for kind in BORDERS[name])
    value = _whole_numbers(before, (3, width)).requires_grad_()
    output = border(value)
    output_gradient = _whole_numbers(after, tuple(output.shape))
    output.backward(output_gradient)
    assert value.grad is not None
    return BorderPass(value.detach(), output.detach(), output_gradient, value.grad)


def _whole_numbers(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed + 1)).double()
