"""Numeric precisions of a run, by their names in training.yaml."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jellybean.training.errors import TrainingError
from jellybean.training.stages.loss_scale import LossScale


@dataclass(frozen=True)
class Precision:
    """`computation`: autocast's type; None: the weights' own type. `weights`: type of weight matrices; None: their own.

    `scales_loss`: small gradients would be 0 in the computation's type.
    """

    computation: torch.dtype | None = None
    weights: torch.dtype | None = None
    scales_loss: bool = False

    def loss_scale(self) -> LossScale | None:
        """The scale of the loss at the start of a run; None: not scaled."""
        return LossScale() if self.scales_loss else None

    def check_schedule(self, name: str, *, flushes: bool) -> None:
        """TrainingError if a schedule cannot train in this precision."""
        if self.scales_loss and not flushes:
            raise TrainingError(
                f"{name} updates its stages at different times, and float16 must skip an update in all stages when a "
                "gradient overflows: --set precision=bfloat16, or a schedule that flushes"
            )


PRECISIONS = {
    "float32": Precision(),
    "bfloat16": Precision(torch.bfloat16),
    "bfloat16-weights": Precision(torch.bfloat16, torch.bfloat16),
    "float16": Precision(torch.float16, scales_loss=True),
}
