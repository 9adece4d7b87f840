"""Which values a stage exchanges with which others, where stages form a graph and send to each other directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from jellybean.training.processes.tensor_messages import StageTensors


@dataclass(frozen=True, slots=True)
class StageLinks:
    """`sources`: the stage that sends each value received, in order of these stages.

    `targets`: the stages that receive each output. `trained_outputs`: whether an output takes a gradient.
    `trained_sources`: the stages that expect gradients of what they sent.
    """

    sources: tuple[int, ...]
    targets: tuple[frozenset[int], ...]
    trained_outputs: tuple[bool, ...]
    trained_sources: frozenset[int]

    def sent_to(self, consumer: int, outputs: StageTensors) -> StageTensors:
        """The outputs that a stage receives."""
        return tuple(value for value, to in zip(outputs, self.targets, strict=True) if consumer in to)

    def gradients_for(self, producer: int, gradients: StageTensors) -> StageTensors:
        """The gradients of what a stage has sent, of those of all received values."""
        return tuple(value for value, source in zip(gradients, self.sources, strict=True) if source == producer)

    @property
    def gradient_senders(self) -> tuple[int, ...]:
        """The stages that send gradients of outputs, in order."""
        pairs = zip(self.targets, self.trained_outputs, strict=True)
        return tuple(sorted({target for to, trained in pairs if trained for target in to}))

    def sum_gradients(self, received: Mapping[int, StageTensors]) -> StageTensors:
        """The gradient of each output: the sum over the stages that received it. `received`: by stage."""
        values = {consumer: iter(own) for consumer, own in received.items()}
        return tuple(
            self._sum([next(values[target]) for target in sorted(to) if target in values]) for to in self.targets
        )

    @staticmethod
    def _sum(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        total: torch.Tensor | None = None
        for part in parts:
            if part is not None:
                total = part if total is None else total + part
        return total
