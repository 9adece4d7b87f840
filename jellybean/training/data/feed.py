"""The micro-batches of one iteration for the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jellybean.training.data.rows import MicrobatchIndex, MicrobatchReader


@dataclass(frozen=True)
class IterationFeed:
    """The micro-batches of one iteration of a replica (`MicrobatchFeed`). `step`: updates before the iteration."""

    reader: MicrobatchReader
    iteration: int
    device: torch.device
    step: int
    replica: int
    base_seed: int

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The model's tensors with these indices."""
        if not arguments:
            return ()
        found = self.reader.inputs(MicrobatchIndex(self.iteration, microbatch), arguments)
        return tuple(value.to(self.device) for value in found)

    def target(self, microbatch: int) -> Any:
        """Second argument of the loss."""
        return self.reader.target(MicrobatchIndex(self.iteration, microbatch), self.device)

    def factor(self, microbatch: int) -> float:
        """Weight of the micro-batch's mean loss in the loss of its update: its share of what counts in it."""
        index = MicrobatchIndex(self.iteration, microbatch)
        weight = self.reader.weight(index)
        return weight / self.reader.update_weight(index) if weight else 0.0

    def seed(self, microbatch: int, stage: int) -> int:
        """Random seed of a stage's forward; the same when the forward is recomputed."""
        return hash((self.base_seed, self.step, self.replica, microbatch, stage)) & 0x7FFFFFFF
